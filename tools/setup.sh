#!/usr/bin/env bash
# Installs what versions/ lists: distribution packages (root or sudo) and the Python environment .venv. Quick when
# everything is there.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

installed() {
  [[ $(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null) == installed ]]
}

# Prints the names on this release of the listed packages that are missing.
missing_packages() {
  local line names name optional
  while IFS= read -r line; do
    line=${line%%#*}
    [[ -z ${line// /} ]] && continue
    optional=
    [[ $line == *" optional" ]] && optional=optional && line=${line% optional}
    IFS='|' read -ra names <<<"${line// /}"
    for name in "${names[@]}"; do
      installed "$name" && continue 2
    done
    # The first name that this release knows.
    for name in "${names[@]}"; do
      apt-cache show --no-all-versions "$name" >/dev/null 2>&1 && echo "$name" && continue 2
    done
    [[ -n $optional ]] || echo "${names[0]}"
  done <"$ROOT/versions/packages.txt"
}

setup_packages() {
  local missing
  if ! command -v dpkg-query >/dev/null; then
    die setup "this is no Debian or Ubuntu (no dpkg-query)" \
      "install the equivalents of versions/packages.txt by hand, then run with ORCA_SKIP_PACKAGES=1"
  fi
  mapfile -t missing < <(missing_packages)
  ((${#missing[@]} == 0)) && return
  if ((EUID != 0)) && ! command -v sudo >/dev/null; then
    die setup "these packages are missing and there is neither root nor sudo: ${missing[*]}" \
      "as root: apt-get install ${missing[*]}"
  fi
  ((EUID == 0)) || sudo -v || die setup "sudo refused" "as root: apt-get install ${missing[*]}"
  step apt-update "package lists" "check the network and /etc/apt/sources.list" \
    as_root apt-get -q update
  # A fresh machine knew no names before.
  mapfile -t missing < <(missing_packages)
  step apt-install "${#missing[@]} packages: ${missing[*]}" \
    "run 'apt-get install ${missing[*]}' as root and read its message" \
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 \
    install --no-install-recommends "${missing[@]}"
}

# The interpreter of the distribution: its headers come with python3-dev.
setup_venv() {
  local stamp=$VENV/orca-versions key site
  key=$(sha256sum "$ROOT/versions/requirements.txt" "${BASH_SOURCE[0]}" | sha256sum | cut -c 1-16)
  site=$(echo "$VENV"/lib/python3*/site-packages)
  [[ -x $PYTHON && $(cat "$stamp" 2>/dev/null) == "$key" && $(cat "$site/orca-dev.pth" 2>/dev/null) == "$ROOT/python" ]] &&
    return
  /usr/bin/python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    die setup "$(/usr/bin/python3 -V) is too old" "use Debian 12, Ubuntu 24.04 or newer (Python 3.11)"
  if [[ ! -x $PYTHON ]]; then
    step venv "environment in .venv" "remove .venv and try again" /usr/bin/python3 -m venv "$VENV"
  fi
  step uv "installer in .venv" "check the network: pip must reach the package index" \
    "$PYTHON" -m pip install -q "$(grep '^uv==' "$ROOT/versions/requirements.txt")"
  step python-packages "Python packages (torch is large: minutes on a slow line)" \
    "check the network and the disk (7 GB), then run again: what was downloaded is kept" \
    env UV_LINK_MODE="${UV_LINK_MODE:-hardlink}" "$VENV/bin/uv" pip install --python "$PYTHON" \
    -r "$ROOT/versions/requirements.txt"
  # All of them would take a minute; Python compiles the others when they are first imported.
  step bytecode "first import of torch" "read the error: the packages do not fit together" \
    "$PYTHON" -c 'import torch, torch.distributed, torchvision, numpy'
  site=$(echo "$VENV"/lib/python3*/site-packages)
  echo "$ROOT/python" >"$site/orca-dev.pth"
  echo "$key" >"$stamp"
}

[[ -n ${ORCA_SKIP_PACKAGES:-} ]] || setup_packages
setup_venv
