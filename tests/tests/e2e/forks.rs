//! Forks of a Python that has loaded PyTorch are like starts of Python, so that tests may use them.

use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use dtrain_test_kit::{forks, need};
use dtrain_tests::process::{expect_exit_code, finish, output_text, wait_until};

const LIMIT: Duration = Duration::from_secs(120);

/// Prints what a program sees of its start.
const SEEN: &str = "import os, sys
print(sys.argv, sys.path[0], os.getcwd(), sys.stdin.read(), os.environ.get('OWN'), __name__)
print('to standard error', file=sys.stderr)
sys.exit(int(sys.argv[1]))";

fn python(python: &Path, folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(python);
    command.args(args).current_dir(folder).env("OWN", "value");
    forks::connect(&mut command);
    command
}

#[test]
fn a_fork_sees_what_a_start_of_python_sees() {
    let (Ok(users), Ok(forked)) = (need::pytorch(), forks::pytorch()) else { return };
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("input"), "words of the input").unwrap();
    // A start with PyTorch takes seconds, so one of two has it.
    let script = format!("import torch\nprint(torch.__version__)\n{SEEN}");
    std::fs::write(folder.path().join("script.py"), script).unwrap();
    for args in [["-c", SEEN, "3"].as_slice(), &["script.py", "0", "more"]] {
        let seen = |program: &Path| {
            let mut command = python(program, folder.path(), args);
            command.stdin(File::open(folder.path().join("input")).unwrap());
            let output = command.stdout(Stdio::piped()).stderr(Stdio::piped()).output().unwrap();
            (output.status.code(), output_text(&output))
        };
        let own = seen(&users);
        assert!(own.1.contains("words of the input") && own.1.contains("to standard error"), "{own:?}");
        assert_eq!(seen(&forked), own);
    }
}

#[test]
fn forks_have_random_numbers_of_their_own() {
    let Ok(forked) = forks::pytorch() else { return };
    let numbers = "import random, torch; print(random.random(), torch.rand(1).item())";
    let drawn = [(); 2].map(|()| {
        let output = finish(&mut python(&forked, Path::new("."), &["-c", numbers]), LIMIT);
        expect_exit_code(&output, 0);
        String::from_utf8_lossy(&output.stdout).into_owned()
    });
    let [one, other] = drawn.each_ref().map(|text| text.split_whitespace().collect::<Vec<_>>());
    assert!(one.len() == 2 && one[0] != other[0] && one[1] != other[1], "{drawn:?}");
}

#[test]
fn a_fork_dies_as_its_program_does_and_with_its_client() {
    let Ok(forked) = forks::pytorch() else { return };
    let folder = tempfile::tempdir().unwrap();
    let killed =
        python(&forked, folder.path(), &["-c", "import os; os.kill(os.getpid(), 9)"]).output().unwrap();
    assert_eq!(killed.status.signal(), Some(9));
    let raised = finish(&mut python(&forked, folder.path(), &["-c", "raise ValueError('wrong')"]), LIMIT);
    let text = expect_exit_code(&raised, 1);
    assert!(text.contains("ValueError: wrong"), "{text}");

    let wait = "import os, time; open('pid', 'w').write(f'{os.getpid()}\\n'); time.sleep(1000)";
    let mut client = python(&forked, folder.path(), &["-c", wait]).spawn().unwrap();
    let pid = || std::fs::read_to_string(folder.path().join("pid")).unwrap_or_default();
    wait_until("the program's start", || pid().ends_with('\n'));
    let program = Path::new("/proc").join(pid().trim());
    assert!(program.exists());
    client.kill().unwrap();
    client.wait().unwrap();
    wait_until("the program's end", || !program.exists());
}
