//! A pod's container: its variables, mounts and command.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::programs::build_folder;

/// Gives the pod its host name and mounts, and becomes its command. A source of `-` is a file system in memory.
const POD: &str = r#"
set -e
echo "$1" > /proc/sys/kernel/hostname
shift
while [ "$1" != -- ]; do
    case $1 in
        -) mount -t tmpfs tmpfs "$2" ;;
        *) mount --bind "$1" "$2" ;;
    esac
    shift 2
done
shift
cd /
exec "$@"
"#;

/// Returns the variables of the manifest, and those that Kubernetes adds.
///
/// # Panics
/// If `secret` does not return the secret with this name and key: the pod cannot begin.
pub(super) fn variables(
    name: &str,
    index: usize,
    container: &Value,
    secret: impl Fn(&str, &str) -> Option<String>,
) -> BTreeMap<String, String> {
    let own = container["env"].as_array().into_iter().flatten().map(|variable| {
        let source = &variable["valueFrom"]["secretKeyRef"];
        let (of, key) = (text(&source["name"]), text(&source["key"]));
        let value = secret(of, key).unwrap_or_else(|| panic!("couldn't find key {key} in Secret {of}"));
        (text(&variable["name"]).to_owned(), value)
    });
    let added = [
        ("HOSTNAME", name.to_owned()),
        ("JOB_COMPLETION_INDEX", index.to_string()),
        ("KUBERNETES_PORT", "tcp://10.96.0.1:443".to_owned()),
        ("KUBERNETES_SERVICE_HOST", "10.96.0.1".to_owned()),
    ];
    added.map(|(name, value)| (name.to_owned(), value)).into_iter().chain(own).collect()
}

/// Returns sources, `-` for memory, and the folders where the container sees them.
pub(super) fn mounts(
    pod: &Value,
    container: &Value,
    claim: impl Fn(&str) -> PathBuf,
) -> Vec<(PathBuf, String)> {
    let volumes = pod["volumes"].as_array().cloned().unwrap_or_default();
    let mounts = container["volumeMounts"].as_array().into_iter().flatten();
    let mount = |mount: &Value| {
        let volume = volumes.iter().find(|volume| volume["name"] == mount["name"]);
        let volume = volume.unwrap_or_else(|| panic!("volumeMounts[].name: Not found: {}", mount["name"]));
        let source = match volume["persistentVolumeClaim"]["claimName"].as_str() {
            Some(name) => claim(name),
            None => {
                assert_eq!(volume["emptyDir"]["medium"], "Memory", "{volume}");
                PathBuf::from("-")
            }
        };
        (source, text(&mount["mountPath"]).to_owned())
    };
    mounts.map(mount).collect()
}

/// Returns the command of a container, with an environment of these variables only.
pub(super) fn command(
    name: &str,
    mounts: &[(PathBuf, String)],
    variables: &BTreeMap<String, String>,
    container: &Value,
    mark: (&str, &str),
) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--uts", "--mount", "sh", "-c", POD, "pod", name]);
    for (source, path) in mounts {
        command.arg(source).arg(path);
    }
    command.args(["--", "env", "-i", "HOME=/", &format!("{}={}", mark.0, mark.1)]);
    command.arg(format!("PATH={}:/usr/local/bin:/usr/bin:/bin", build_folder().display()));
    command.args(variables.iter().map(|(name, value)| format!("{name}={value}")));
    command.args(container["command"].as_array().unwrap().iter().map(|word| expand(text(word), variables)));
    command
}

pub(super) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text"))
}

/// Replaces `$(NAME)` by the variable's value, and `$$` by `$`. Unknown names and other dollar signs stay.
fn expand(word: &str, variables: &BTreeMap<String, String>) -> String {
    let (mut expanded, mut rest) = (String::new(), word);
    while let Some((before, after)) = rest.split_once('$') {
        expanded += before;
        let name = after.strip_prefix('(').and_then(|text| text.split_once(')'));
        rest = match name {
            Some((name, after)) if variables.contains_key(name) => {
                expanded += &variables[name];
                after
            }
            _ => {
                expanded.push('$');
                after.strip_prefix('$').unwrap_or(after)
            }
        };
    }
    expanded + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_expand_as_in_kubernetes() {
        let variables = BTreeMap::from([("A".to_owned(), "$(A) x".to_owned())]);
        for (word, expanded) in [
            ("$(A)/$(B)", "$(A) x/$(B)"),
            ("$$(A) $$$$ $a $", "$(A) $$ $a $"),
            ("$$$(A)", "$$(A) x"),
            ("$(A", "$(A"),
        ] {
            assert_eq!(expand(word, &variables), expanded, "{word}");
        }
    }
}
