#!/usr/bin/env bash
# install-containerlab.sh: install docker and containerlab on Debian or Ubuntu, for `testbed up --driver containerlab`.
#
# docker comes from the distribution. Its init script fails where root may not raise limits, as in many containers
# ("ulimit: ... Operation not permitted"); then this script starts dockerd itself, and says so and how to end it.
# containerlab comes from its own package repository if apt has it configured;
# otherwise it is built from its Go module (minutes). Its version is pinned only in tools/containerlab/go.mod; go.sum
# has the checksum of every module of the build. A recent enough installation is kept, so the script can be run
# repeatedly. For a newer version: edit the version in go.mod, then GOFLAGS=-mod=mod go list -deps github.com/srl-labs/containerlab
#
#   PREFIX=/usr/local     install a built containerlab in PREFIX/bin
#   START_DOCKER=no       install only; do not start the daemon
#   SCHEMAS=folder        also keep the JSON schema of containerlab's files in this folder, for tests; needs Go
set -euo pipefail
cd "$(dirname "$0")/containerlab"

readonly prefix=${PREFIX:-/usr/local}
readonly module=github.com/srl-labs/containerlab
pinned=$(sed -n "s#^require $module v##p" go.mod)
readonly pinned
# The command line: by its name, unless only the checkout has it.
testbed=testbed
command -v testbed >/dev/null || [ ! -x ../../.venv/bin/testbed ] || testbed=$(cd ../../.venv/bin && pwd)/testbed
readonly testbed

say() { echo "install-containerlab: $*"; }
die() {
    echo "install-containerlab: FAILED: $*" >&2
    exit 1
}
have() { command -v "$1" >/dev/null 2>&1; }
apt_get() { DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=120 -o Acquire::Retries=2 "$@" >/dev/null; }
apt_updated=no
apt_update() {
    [ "$apt_updated" = no ] || return 0
    apt_get update || die "apt-get update failed; see its output above"
    apt_updated=yes
}
apt_install() {
    say "installing Debian packages: $*"
    apt_update
    apt_get install -y --no-install-recommends "$@" || die "apt-get could not install: $*"
}

readonly docker_socket=/var/run/docker.sock docker_log=/var/log/docker.log
readonly docker_pid=/var/run/docker.pid
readonly docker_pid_of_init=/var/run/docker-ssd.pid # that of the init script: `service docker stop` ends this dockerd too

docker_answers() { docker version >/dev/null 2>&1; }

install_docker() {
    if ! have dockerd; then
        unstarted apt_install docker.io iptables
    fi
    if docker_answers; then
        say "docker $(docker version --format '{{.Server.Version}}') answers"
        return 0
    fi
    [ "${START_DOCKER:-yes}" = yes ] || return 0
    [ -z "${DOCKER_HOST:-}" ] || [ "$DOCKER_HOST" = "unix://$docker_socket" ] ||
        die "DOCKER_HOST=$DOCKER_HOST does not answer; start that docker, or unset DOCKER_HOST for this machine's own"
    if [ -d /run/systemd/system ]; then
        systemctl enable --now docker >/dev/null || die "docker does not start; see: journalctl -u docker"
        await_docker || die "docker was started but did not answer within 30 s; see: journalctl -u docker"
        say "docker $(docker version --format '{{.Server.Version}}') runs; end it with: systemctl stop docker"
        return 0
    fi
    local why="this machine has no init script for it"
    if have service && [ -e /etc/init.d/docker ]; then
        if why=$(service docker start 2>&1) && await_docker; then
            say "docker $(docker version --format '{{.Server.Version}}') runs, started by its init script;" \
                "log: $docker_log; end it with: service docker stop"
            return 0
        fi
        why="its init script failed: $(tail -n 1 <<<"${why:-docker did not answer within 30 s}")"
    fi
    start_dockerd "$why"
}

# Run a command that installs docker. Without systemd its package starts docker by the init script, and counts as not
# installed where that fails: forbid that start by Debian's own means, invoke-rc.d(8).
unstarted() {
    local policy=/usr/sbin/policy-rc.d
    if [ -d /run/systemd/system ] || [ -e "$policy" ]; then
        "$@"
        return
    fi
    trap "rm -f $policy" EXIT
    printf '#!/bin/sh\n[ "$1" != docker ] || exit 101\n' >"$policy"
    chmod 755 "$policy"
    "$@"
    rm -f "$policy"
    trap - EXIT
}

# Wait until docker answers, and no longer than this dockerd runs, if its pid is given.
await_docker() {
    for _ in $(seq 150); do
        ! docker_answers || return 0
        [ -z "${1:-}" ] || kill -0 "$1" 2>/dev/null || return 1
        sleep 0.2
    done
    return 1
}

# Start dockerd as its init script does, but for the limits; first with its usual networks, then without any.
start_dockerd() {
    if start-stop-daemon --status --pidfile "$docker_pid_of_init"; then
        die "dockerd (pid $(cat "$docker_pid_of_init")) runs but does not answer; see $docker_log, end it with:" \
            "service docker stop, and run this script again"
    fi
    local options begun without="--bridge=none --iptables=false --ip6tables=false --ip-forward=false --ip-masq=false"
    options=$(set +u && . /etc/default/docker >/dev/null 2>&1 && echo "${DOCKER_OPTS:-}") || options=""
    begun=$(stat -c %s "$docker_log" 2>/dev/null || echo 0)
    # shellcheck disable=SC2086 # options are words
    for more in "" "$without"; do
        start-stop-daemon --start --background --no-close --exec "$(command -v dockerd)" \
            --pidfile "$docker_pid_of_init" --make-pidfile -- -p "$docker_pid" $options $more \
            >>"$docker_log" 2>&1 </dev/null || continue
        await_docker "$(cat "$docker_pid_of_init")" || {
            start-stop-daemon --stop --oknodo --quiet --pidfile "$docker_pid_of_init" --remove-pidfile --retry 10
            continue
        }
        say "docker $(docker version --format '{{.Server.Version}}') runs: this script started dockerd itself" \
            "(pid $(cat "$docker_pid")), because $1"
        say "  log: $docker_log; end it with: service docker stop, or: kill $(cat "$docker_pid")"
        say "  it does not start with the machine: run this script again after a restart"
        [ -z "$more" ] || say "  it has no network for containers, as it could not make one here: labs need none;" \
            "other containers need --network none or host"
        return 0
    done
    die "dockerd does not start here; its last words in $docker_log:" \
        "$(tail -c "+$((begun + 1))" "$docker_log" | tail -n 2)"
}

# Print the version number alone, such as 0.79.0.
installed_version() { CLAB_VERSION_CHECK=disable containerlab version --short 2>/dev/null | tail -n 1; }
new_enough() { [ -n "$1" ] && [ "$(printf '%s\n%s\n' "$pinned" "$1" | sort -V | head -n 1)" = "$pinned" ]; }

# Go 1.21 and newer download the toolchain that a module requires; Debian 12's own 1.19 does not.
go_fits() { have go && [ "$(printf '1.21\n%s\n' "$(go env GOVERSION | sed 's/^go//')" | sort -V | head -n 1)" = 1.21 ]; }

# Provide a Go that builds containerlab: the installed one, the distribution's newest, or the toolchain that go.mod
# requires. An older Go downloads that toolchain as a module, checked against Go's checksum database.
install_go() {
    ! go_fits || return 0
    have go || PATH=$PATH:/usr/local/go/bin # usual place of Go's own archive, which is not in sudo's PATH
    ! go_fits || return 0
    local newest
    newest=$(newest_packaged_go)
    if [ -z "$newest" ] && ! have go; then
        apt_update # package lists may be missing
        newest=$(newest_packaged_go)
    fi
    if [ -n "$newest" ]; then
        apt_install "golang-1.$newest-go"
        PATH=/usr/lib/go-1.$newest/bin:$PATH
    else
        have go || apt_install golang-go
        fetch_toolchain
    fi
    go_fits || die "building containerlab needs Go 1.21 or newer, and none is available: enable the distribution's" \
        "backports, or add containerlab's own package repository to apt, and run this again"
}

newest_packaged_go() {
    apt-cache pkgnames golang-1. | sed -n 's/^golang-1\.\([0-9]*\)-go$/\1/p' | sort -n | awk '$1 >= 21' | tail -n 1
}

fetch_toolchain() {
    local wanted folder
    leave_no_caches
    wanted=$(sed -n 's/^go //p' go.mod)
    say "fetching Go $wanted: $(go env GOVERSION) is too old"
    # In a folder without a go.mod, which an older Go could not read.
    folder=$(cd "$work" && go mod download -json \
        "golang.org/toolchain@v0.0.1-go$wanted.$(go env GOOS)-$(go env GOARCH)" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
    [ -n "$folder" ] || die "could not download Go $wanted"
    # A module's files are read-only and never executable.
    cp -r "$folder" "$work/go"
    chmod -R u+w "$work/go"
    chmod -R +x "$work/go/bin" "$work/go/pkg/tool"
    export GOTOOLCHAIN=local # it is what go.mod asks for: nothing else need be fetched
    PATH=$work/go/bin:$PATH
}

# Go's caches stay where this machine has some already; else a gigabyte would be left behind for one build.
leave_no_caches() {
    [ -d "$(go env GOMODCACHE 2>/dev/null)" ] || export GOPATH=$work/gopath GOCACHE=$work/cache
}

work=
make_work_folder() {
    [ -z "$work" ] || return 0
    work=$(mktemp -d)
    trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
}

# Print where the module's files are. To be called in a folder that has go.mod and go.sum.
module_folder() { go mod download -json "$module" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p'; }

build_containerlab() {
    make_work_folder
    have git || apt_install git
    [ -e /etc/ssl/certs/ca-certificates.crt ] || apt_install ca-certificates # Go trusts nobody without
    install_go
    leave_no_caches
    say "building containerlab $pinned from its Go module: one to two minutes on two idle cores, after its downloads"
    local ldflags began=$SECONDS
    cp go.mod go.sum "$work/"
    cd "$work"
    export GOFLAGS=-mod=readonly CGO_ENABLED=0 # what go.sum does not name, or not so, is not built
    ldflags="-s -w -X $module/cmd.Version=$pinned"
    if [ -e /proc/modules ]; then
        go build -ldflags "$ldflags" -o containerlab "$module" || die "the build failed"
    else
        # A kernel without loadable modules has no such file, and containerlab would stop at that: let it read an empty one.
        local source
        source=$(module_folder)
        [ -n "$source" ] || die "could not download its source"
        cp -r "$source" source
        chmod -R u+w source
        cd source
        sed -i 's#"/proc/modules"#"/dev/null"#' utils/kernel_module.go
        go build -ldflags "$ldflags" -o ../containerlab . || die "the build failed"
        cd ..
    fi
    install -D -m 755 containerlab "$prefix/bin/containerlab"
    say "built containerlab in $((SECONDS - began)) s"
}

install_containerlab() {
    local version
    version=$(installed_version || true)
    if new_enough "$version"; then
        say "containerlab $version is installed"
        return 0
    fi
    [ -z "$version" ] || say "containerlab $version is older than $pinned"
    local candidate
    candidate=$(apt-cache policy containerlab 2>/dev/null | sed -n 's/^ *Candidate: //p')
    if [ -n "$candidate" ] && [ "$candidate" != "(none)" ] && new_enough "$candidate"; then
        apt_install containerlab
    else
        build_containerlab
    fi
    new_enough "$(PATH=$prefix/bin:$PATH installed_version)" || die "containerlab is still not $pinned or newer"
    say "containerlab $(PATH=$prefix/bin:$PATH installed_version) is installed"
}

# A package of containerlab has no schema; the Go module has.
keep_schema() {
    local kept=${SCHEMAS:-}/clab-$pinned.schema.json folder
    [ -n "${SCHEMAS:-}" ] && [ ! -e "$kept" ] || return 0
    have go || PATH=$PATH:/usr/local/go/bin
    go_fits || {
        say "containerlab's schema is not kept: it is in the Go module, and Go is not installed"
        return 0
    }
    make_work_folder
    leave_no_caches
    folder=$(module_folder) && install -D -m 644 "$folder/schemas/clab.schema.json" "$kept" ||
        say "containerlab's schema is not kept: its Go module could not be downloaded"
}

main() {
    [ "$(id -u)" -eq 0 ] || die "run it as root: $(have sudo && echo "sudo $0" || echo "su -c $0")"
    have apt-get || die "this is for Debian and Ubuntu (apt-get); elsewhere install docker and containerlab $pinned as they say themselves"
    install_docker
    install_containerlab
    keep_schema
    say "done; next: ${SUDO_UID:+sudo }$testbed image build (docs/containerlab.md; one to three minutes on two cores, and a download of" \
        "250 MB), and before it, on a machine that reaches no registry: ${SUDO_UID:+sudo }$testbed image base (one to two minutes)"
}

main "$@"
