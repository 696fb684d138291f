#!/bin/sh
# Fetches the public data sets of the benchmarks: benchmarks/fetch.sh DIRECTORY
# Each file is the one that was measured with, or this ends with an error.
set -eu
directory=${1:?give the directory to fetch into}
raw=https://raw.githubusercontent.com

fetch() {  # file, address, SHA-256
    mkdir -p "$(dirname "$directory/$1")"
    if ! echo "$3  $directory/$1" | sha256sum --check --status 2>/dev/null; then
        curl --fail --location --silent --show-error --output "$directory/$1" "$2"
        echo "$3  $directory/$1" | sha256sum --check
    fi
}

# Acetylacetone, MIT licence: Batatia et al., arXiv:2205.06643.
acac=$raw/davkovacs/BOTNet-datasets/29e6d467317e4b5967b7ea5cbee54de953fa0d45/dataset_acac
fetch acac/train_300K.xyz "$acac/train_300K.xyz" 8f5706d6902360555a5be59395612d2afc3489a75688388a58e7275fdad68af3
fetch acac/test_MD_300K.xyz "$acac/test_MD_300K.xyz" 2291f3186a3cc6a5e05e92952c84a9237ca53f862d78fd3316a769360719ec43

# Silicon and germanium, BSD licence: Zuo et al., J. Phys. Chem. A 124, 731 (2020).
mlearn=$raw/materialsvirtuallab/mlearn/10c427a5480c6281c15c64efaf869b03be04818f/data
fetch mlearn/Si_training.json "$mlearn/Si/training.json" ae6d4b0a65b00e0fcf7ba0a6fad366716710d2f0d21d70199203089c6866b500
fetch mlearn/Si_test.json "$mlearn/Si/test.json" d452b30a89f23bff76f7cc529b7b6c2d159ea81ccd5a4599fb1a18207654fa91
fetch mlearn/Ge_training.json "$mlearn/Ge/training.json" 43dee02009a5167f94c7aafce19051222bcfc328c46181750cc2a2018187ca00
fetch mlearn/Ge_test.json "$mlearn/Ge/test.json" 737ea6159c9dd27ebee7fb8ffae22f15e20466884927771248ca4f5b2cd3f093

# Perovskites, MIT licence: Castelli et al. (2012), as split by Xie et al., arXiv:2110.06197.
perov=$raw/txie-93/cdvae/f857f598d6f6cca5dc1ea0582d228f12dcc2c2ea/data/perov_5
fetch perov_5/val.csv "$perov/val.csv" 326f401219901270374b71e2faff63df3a29a99fd26f469993b9f476b693daf2
fetch perov_5/test.csv "$perov/test.csv" a85878c685037f0a578257f6d4fcdde00e968dbab73c5f1e90ecef65218513f6
