#!/usr/bin/env bash
# verdict.sh WHAT GOOD COMMAND…: run COMMAND and print one line with its outcome.
set -uo pipefail
what=$1 good=$2
shift 2

"$@"
status=$?
if [ "$status" -eq 0 ]; then
    [ -z "$good" ] || echo "make $what: done; $good"
elif [ "$status" -eq 130 ]; then
    echo "make $what: INTERRUPTED" >&2
else
    echo "make $what: FAILED (exit $status): see above; the command was: $*" >&2
fi
exit "$status"
