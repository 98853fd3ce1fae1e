#!/bin/sh
# The steps of Dockerfile and dtrain.def, on Debian as root, in the root of a copy of the repository.
#
#   build.sh tools                   installs the packages that the build needs
#   build.sh dtrain SET DIR          builds dtrain with the set `cpu` or `cuda` of libtorch, and installs it in DIR
#   build.sh install SET BUILD DIR   installs the programs of the folder BUILD and libtorch in DIR
#
# DIR/bin/dtrain-worker finds libtorch in DIR/libtorch, as in the build folder. DIR can be moved as a whole.
set -eu
umask 022

usage() {
    sed -n '/^#   build/s/^#  //p' "$0" >&2
    exit 2
}

tools() {
    apt-get -q update
    DEBIAN_FRONTEND=noninteractive apt-get -qy install --no-install-recommends ca-certificates g++ python3 python3-pip
    rm -rf /var/lib/apt/lists/*
}

build() {
    cargo xtask setup "--$1"
    cargo build --release --package dtrain --package dtrain-worker
}

# Copies the libraries of a folder. Headers and Python files stay behind.
libraries() {
    mkdir -p "$2"
    cp -P "$1"/*.so* "$2"
}

install() {
    mkdir -p "$3/bin"
    cp "$2/dtrain" "$2/dtrain-worker" "$2/dtrain-recipes" "$3/bin"
    torch=${LIBTORCH:-target/libtorch/torch}
    libraries "$torch/lib" "$3/libtorch/torch/lib"
    for folder in "$torch"/../nvidia/*/lib; do
        if [ -d "$folder" ]; then
            libraries "$folder" "$3/libtorch/nvidia/${folder#"$torch"/../nvidia/}"
        fi
    done
    lib=$3/libtorch/torch/lib
    # Only Python loads these.
    rm -f "$lib/libtorch_python.so" "$lib"/libshm*
    if [ "$1" = cpu ]; then
        # Half a gigabyte that does not load without the rest of the CUDA set.
        rm -f "$lib/libtorch.so" "$lib/libtorch_nvshmem.so" "$lib"/*cuda*.so
    fi
    "$3/bin/dtrain" --version
    "$3/bin/dtrain-worker" --version
}

[ $# -gt 0 ] || usage
step=$1
shift
case $step/${1-} in
    tools/ | dtrain/cpu | dtrain/cuda | install/cpu | install/cuda) ;;
    *) usage ;;
esac
case $step/$# in
    tools/0) tools ;;
    dtrain/2)
        build "$1"
        install "$1" target/release "$2"
        ;;
    install/3) install "$@" ;;
    *) usage ;;
esac
