#!/bin/sh
# Lay out what is brought into a vLLM that was not built with it:
#
#   DIRECTORY                          to stand on PYTHONPATH: the package and its entry points, nothing else
#   DIRECTORY/vllm_vitals_spare/X.Y    what vLLM's Python X.Y may lack; the package puts it at the end of sys.path
#
# package.sh WHEEL DIRECTORY REQUIREMENTS X.Y [X.Y ...]
set -eu
wheel=$1 directory=$2 requirements=$3
shift 3

# Anything on PYTHONPATH comes before what the serving image has. So only what is ours may be there.
pip() { "${PYTHON:-python3}" -m pip install --quiet --disable-pip-version-check --no-compile "$@"; }
pip --no-deps --target "$directory" "$wheel"
rm -rf "$directory/bin"
for version in "$@"; do
    pip --target "$directory/vllm_vitals_spare/$version" --python-version "$version" --only-binary :all: --requirement "$requirements"
    rm -rf "$directory/vllm_vitals_spare/$version/bin"
done
