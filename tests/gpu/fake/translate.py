"""python -m tests.gpu.fake.translate IMAGE: prints the path of the shared library that runs the image's kernels."""

import sys
from pathlib import Path

from tests.gpu.fake.driver import emulated

if __name__ == "__main__":
    print(emulated(Path(sys.argv[1]).read_bytes()))
