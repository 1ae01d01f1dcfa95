#!/usr/bin/env bash
# install-containerlab.sh: install docker and containerlab on Debian or Ubuntu, for `testbed up --driver containerlab`.
#
# docker comes from the distribution. containerlab comes from its own package repository if apt has it configured;
# otherwise it is built from its Go module (a minute). Its version is pinned only in tools/containerlab/go.mod; go.sum
# has the checksum of every module of the build. A recent enough installation is kept, so the script can be run
# repeatedly. For a newer version: edit the version in go.mod, then GOFLAGS=-mod=mod go list -deps github.com/srl-labs/containerlab
#
#   PREFIX=/usr/local     install a built containerlab in PREFIX/bin
#   START_DOCKER=no       install only; do not start the daemon
set -euo pipefail
cd "$(dirname "$0")/containerlab"

readonly prefix=${PREFIX:-/usr/local}
readonly module=github.com/srl-labs/containerlab
pinned=$(sed -n "s#^require $module v##p" go.mod)
readonly pinned

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

docker_answers() { docker version >/dev/null 2>&1; }

install_docker() {
    if ! have dockerd; then
        apt_install docker.io iptables
    fi
    if docker_answers; then
        say "docker $(docker version --format '{{.Server.Version}}') answers"
        return 0
    fi
    [ "${START_DOCKER:-yes}" = yes ] || return 0
    if [ -d /run/systemd/system ]; then
        systemctl enable --now docker >/dev/null || die "docker does not start; see: journalctl -u docker"
    elif have service; then
        service docker start >/dev/null || die "docker does not start; see /var/log/docker.log"
    fi
    for _ in $(seq 30); do
        if docker_answers; then
            say "docker $(docker version --format '{{.Server.Version}}') runs"
            return 0
        fi
        sleep 1
    done
    die "docker is installed but did not answer within 30 s; on a machine without an init system start it by hand: dockerd &"
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

build_containerlab() {
    work=$(mktemp -d) # not local: it is removed when the script ends
    trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
    have git || apt_install git
    [ -e /etc/ssl/certs/ca-certificates.crt ] || apt_install ca-certificates # Go trusts nobody without
    install_go
    leave_no_caches
    say "building containerlab $pinned from its Go module (a minute or two)"
    local ldflags
    cp go.mod go.sum "$work/"
    cd "$work"
    export GOFLAGS=-mod=readonly CGO_ENABLED=0 # what go.sum does not name, or not so, is not built
    ldflags="-s -w -X $module/cmd.Version=$pinned"
    if [ -e /proc/modules ]; then
        go build -ldflags "$ldflags" -o containerlab "$module" || die "the build failed"
    else
        # A kernel without loadable modules has no such file, and containerlab would stop at that: let it read an empty one.
        local source
        source=$(go mod download -json "$module" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
        [ -n "$source" ] || die "could not download its source"
        cp -r "$source" source
        chmod -R u+w source
        cd source
        sed -i 's#"/proc/modules"#"/dev/null"#' utils/kernel_module.go
        go build -ldflags "$ldflags" -o ../containerlab . || die "the build failed"
        cd ..
    fi
    install -D -m 755 containerlab "$prefix/bin/containerlab"
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

main() {
    [ "$(id -u)" -eq 0 ] || die "run it as root: sudo tools/install-containerlab.sh"
    have apt-get || die "this is for Debian and Ubuntu (apt-get); elsewhere install docker and containerlab $pinned as they say themselves"
    install_docker
    install_containerlab
    say "done; next: testbed image build (docs/containerlab.md)"
}

main "$@"
