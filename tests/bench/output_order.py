"""Order of a worker's lines, and progress bars on a terminal, under `dtrain launch` and torchrun.

    python tests/bench/output_order.py --dtrain target/release/dtrain

Needs torch, tqdm and pyte. docs/benchmarks/launcher_2-cores_2026-11.md describes the cases and figures.
"""

import argparse
import collections
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
import time

ROWS, COLUMNS = 200, 100
STEPS = 40


def write_lines(count):
    """Alternates between standard output and standard error."""
    rank = os.environ["RANK"]
    for number in range(count):
        print(f"<{rank} {number}>", file=sys.stderr if number % 2 else sys.stdout, flush=True)


def draw_bar(write):
    """Draws a bar, and writes a line of losses every fourth step."""
    import tqdm

    rank = os.environ["RANK"]
    with tqdm.tqdm(total=STEPS, desc=f"rank {rank}", mininterval=0) as bar:
        for step in range(STEPS):
            bar.update()
            time.sleep(0.01)
            if step % 4 == 3:
                write(bar)(str({"rank": int(rank), "step": step, "loss": 1.5}))


WORKERS = {
    "lines": write_lines,
    "tqdm.write": lambda _: draw_bar(lambda bar: bar.write),
    "print": lambda _: draw_bar(lambda bar: print),
}


def run_on_terminal(command):
    """Returns all bytes that the command writes to a terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = bytearray()
    while True:
        try:
            part = os.read(ours, 1 << 16)
        except OSError:  # The last process has closed the terminal.
            break
        if not part:
            break
        shown += part
    os.close(ours)
    if process.wait() != 0:
        sys.exit(f"{command}: {shown.decode(errors='replace')}")
    return bytes(shown)


def run_to_file(command):
    with tempfile.TemporaryFile() as file:
        subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, check=True)
        file.seek(0)
        return file.read()


def run_to_pipe(command):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=True).stdout


SINKS = {"> file 2>&1": run_to_file, "2>&1 | cat": run_to_pipe, "terminal": run_on_terminal}


def judge_lines(shown, workers, count):
    """Returns the numbers of lines that are out of order in their rank, and not whole or lost."""
    line = re.compile(r"(?:\[rank \d+\] )?<(\d+) (\d+)>\r?")
    last = collections.Counter({rank: -1 for rank in range(workers)})
    out_of_order = whole = 0
    for text in shown.decode().split("\n"):
        if match := line.fullmatch(text):
            rank, number = map(int, match.groups())
            whole += 1
            out_of_order += number != last[rank] + 1
            last[rank] = number
    return out_of_order, workers * count - whole


def judge_bars(shown, workers):
    """Returns the lines of losses that stand alone in their row, the rows of bars and other rows, and the screen."""
    import pyte

    screen = pyte.Screen(COLUMNS, ROWS)
    pyte.ByteStream(screen).feed(shown)
    rows = [row.rstrip() for row in screen.display]
    alone = [row for row in rows if re.fullmatch(r"(\[rank \d+\] )?\{'rank': \d+, 'step': \d+, 'loss': 1.5\}", row)]
    bars = [row for row in rows if row not in alone and re.search(r"\d+%\|", row)]
    return len(alone), workers * STEPS // 4, len(bars), rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtrain", default="target/release/dtrain")
    parser.add_argument("--lines", type=int, default=100_000, help="lines of a worker")
    parser.add_argument("--show", action="store_true", help="print the rendered terminals")
    args = parser.parse_args()
    launchers = {
        "dtrain": [args.dtrain, "launch", "--nproc"],
        "torchrun": [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"],
    }

    def command(launcher, workers, case):
        return [*launchers[launcher], str(workers), __file__, "worker", case, str(args.lines)]

    print(f"{args.lines} alternating lines of a worker: out of order; not whole or lost")
    for workers in (1, 2):
        for sink, run in SINKS.items():
            for launcher in launchers:
                out_of_order, missing = judge_lines(run(command(launcher, workers, "lines")), workers, args.lines)
                print(f"{workers} workers  {sink:12}  {launcher:8}  {out_of_order:6}  {missing:6}", flush=True)
    print("A bar and lines of losses on a terminal: lines alone in their row; rows with a bar")
    for case in ("tqdm.write", "print"):
        for workers in (1, 2):
            for launcher in launchers:
                shown = run_on_terminal(command(launcher, workers, case))
                alone, wanted, bars, rows = judge_bars(shown, workers)
                print(f"{case:10}  {workers} workers  {launcher:8}  {alone} of {wanted}  {bars}", flush=True)
                if args.show:
                    print("\n".join(f"    | {row}" for row in rows if row))


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        WORKERS[sys.argv[2]](int(sys.argv[3]))
    else:
        main()
