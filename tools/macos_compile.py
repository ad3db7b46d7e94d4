"""Compile the native core for macOS arm64 on any machine, with the compiler that the ziglang package carries.

The Python bindings are left out: they need the target's own Python headers, which a wheel build on macOS has.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

NATIVE = Path(__file__).parent.parent / "mlrun/allreduce/native"
COMPILER = [sys.executable, "-m", "ziglang", "c++", "-target", "aarch64-macos.13.0"]
FLAGS = ["-std=c++17", "-O2", "-fPIC", "-Wall", "-Wextra", "-Werror"]


def main() -> int:
    sources = sorted(source for source in NATIVE.glob("*.cpp") if "nanobind" not in source.read_text())
    if not sources:
        print(f"no sources of the core in {NATIVE}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        objects = [str(Path(folder, f"{source.stem}.o")) for source in sources]
        for source, target in zip(sources, objects, strict=True):
            print(f"compile {source.name}", flush=True)
            if subprocess.run([*COMPILER, *FLAGS, "-c", str(source), "-o", target], check=False).returncode:
                return 1
        library = str(Path(folder, "core.dylib"))
        # Linking shows that macOS has every function the core calls.
        if subprocess.run([*COMPILER, "-shared", *objects, "-o", library], check=False).returncode:
            return 1
        print(f"macOS arm64: {len(sources)} sources, {Path(library).stat().st_size:,} bytes linked")
    return 0


if __name__ == "__main__":
    sys.exit(main())
