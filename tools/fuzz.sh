#!/bin/sh
# Fuzzes fiberd with libFuzzer: tools/fuzz.sh [SECONDS [TARGET...]], 60 s for each of packet, fiber and control if not told
# otherwise. Begins from tests/fuzz/corpus; what was found anew stays in build/fuzz/found-*, crashes in build/fuzz/crash-*.
#
#   FUZZ_KEEP=1    afterwards put the smallest set of inputs with the same coverage into tests/fuzz/corpus
#
# docs/fuzzing.md says what is asserted. One process at a time, at the lowest priority.
set -eu
cd "$(dirname "$0")/.."
seconds=${1:-60}
[ $# -eq 0 ] || shift
[ $# -gt 0 ] || set -- packet fiber control
build=$PWD/build/fuzz

most_bytes() {
    case $1 in
    control) echo 4096 ;;
    *) echo 512 ;; # longer ones are slow, and say nothing new: inputs stretch their packets by a number
    esac
}

if ! make -s -C tests/fuzz fuzz BUILD="$build"; then
    echo "fuzz: the targets cannot be built; they need libFuzzer: apt-get install clang libclang-rt-dev" >&2
    echo "fuzz: without it, the corpus can still be replayed: pytest tests/unit/fiberd/test_fiberd_corpus.py" >&2
    exit 1
fi
python=.venv/bin/python
[ -x $python ] || python=python3
$python tests/fuzz/seeds.py "$build/seeds" || echo "fuzz: no seeds (scapy is missing): beginning from the corpus alone" >&2

for target; do
    found=$build/found-$target corpus=tests/fuzz/corpus/$target seeds=$build/seeds/$target
    mkdir -p "$found" "$corpus" "$seeds"
    echo "fuzz: $target for $seconds s" >&2
    nice -n 19 "$build/fuzz-$target" -max_total_time="$seconds" -max_len="$(most_bytes "$target")" -timeout=60 \
        -dict="tests/fuzz/$target.dict" -artifact_prefix="$build/crash-$target-" -print_final_stats=1 -verbosity=0 \
        "$found" "$corpus" "$seeds"
    if [ -n "${FUZZ_KEEP:-}" ]; then
        kept=$build/kept-$target
        rm -rf "$kept"
        mkdir "$kept"
        nice -n 19 "$build/fuzz-$target" -merge=1 -max_len="$(most_bytes "$target")" -verbosity=0 "$kept" "$corpus" "$found" "$seeds"
        rm -f "$corpus"/*
        mv "$kept"/* "$corpus"
    fi
    echo "fuzz: $target: nothing found" >&2
done
