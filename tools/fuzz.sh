#!/bin/sh
# Fuzz fiberd with libFuzzer: tools/fuzz.sh [SECONDS [TARGET...]], by default 60 s for each of packet, fiber and control.
# Starts from tests/fuzz/corpus.tar.xz; new inputs go to build/fuzz/found-*, crashes to build/fuzz/crash-*.
#
#   FUZZ_KEEP=1    afterwards merge the corpus: keep the inputs that add coverage, and every input that once crashed, and
#                  pack them into tests/fuzz/corpus.tar.xz; with SECONDS 0, merge only
#
# docs/fuzzing.md lists the assertions. One process at a time, at the lowest priority.
set -eu
cd "$(dirname "$0")/.."
seconds=${1:-60}
[ $# -eq 0 ] || shift
[ $# -gt 0 ] || set -- packet fiber control
build=$PWD/build/fuzz

most_bytes() {
    case $1 in
    control) echo 4096 ;;
    *) echo 512 ;; # longer inputs are slow and add no coverage: a number in the input lengthens packets
    esac
}

if ! make -s -C tests/fuzz fuzz BUILD="$build"; then
    echo "fuzz: cannot build the targets; they need libFuzzer: apt-get install clang libclang-rt-dev" >&2
    echo "fuzz: without it, the corpus can still be replayed: pytest tests/unit/fiberd/test_fiberd_corpus.py" >&2
    exit 1
fi
python=.venv/bin/python
[ -x $python ] || python=python3
rm -rf "$build/corpus"
$python tools/fuzz_corpus.py unpack "$build/corpus"
$python tests/fuzz/seeds.py "$build/seeds" || echo "fuzz: no seeds (scapy is missing): starting from the corpus alone" >&2

for target; do
    found=$build/found-$target corpus=$build/corpus/$target seeds=$build/seeds/$target
    mkdir -p "$found" "$seeds"
    if [ "$seconds" -gt 0 ]; then # libFuzzer takes 0 s as no limit
        echo "fuzz: $target for $seconds s" >&2
        nice -n 19 "$build/fuzz-$target" -max_total_time="$seconds" -max_len="$(most_bytes "$target")" -timeout=60 \
            -dict="tests/fuzz/$target.dict" -artifact_prefix="$build/crash-$target-" -print_final_stats=1 -verbosity=0 \
            "$found" "$corpus" "$seeds"
        echo "fuzz: $target: no crash found" >&2
    fi
    if [ -n "${FUZZ_KEEP:-}" ]; then
        kept=$build/kept-$target
        rm -rf "$kept"
        mkdir "$kept"
        find "$corpus" -name 'crash-*' -exec cp {} "$kept" \; # kept regardless of coverage; merging adds to the first folder
        nice -n 19 "$build/fuzz-$target" -merge=1 -max_len="$(most_bytes "$target")" -verbosity=0 "$kept" "$corpus" "$found" "$seeds"
        rm -rf "$corpus"
        mv "$kept" "$corpus"
    fi
done
[ -z "${FUZZ_KEEP:-}" ] || $python tools/fuzz_corpus.py pack "$build/corpus"
