# shellcheck shell=bash
# Shared by the scripts beside it; sourced, never run.

# say TEXT...: a heading that a reader of the log can jump to, with the seconds since the start.
CI_STARTED=${CI_STARTED:-$(date +%s)}
export CI_STARTED
say() { printf '\n=== [%4ds] %s\n' "$(($(date +%s) - CI_STARTED))" "$*"; }

# timed NAME COMMAND...: runs the command and says how long it took, whether it worked or not.
timed() {
  local name=$1 began status=0
  shift
  began=$(date +%s)
  say "$name"
  "$@" || status=$?
  printf -- '--- %s: exit %d after %d s\n' "$name" "$status" "$(($(date +%s) - began))"
  return "$status"
}

die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# apt_install PACKAGE...: installs what is missing; needs root and an apt-based machine.
apt_install() {
  local package missing=()
  for package in "$@"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)" = installed ] || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return 0
  [ "$(id -u)" = 0 ] || die "these packages are missing and only root can install them: ${missing[*]}"
  echo "installing ${missing[*]}"
  # Services that packages bring must not start by themselves: whoever needs one here starts its own.
  local policy=/usr/sbin/policy-rc.d made=
  if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod +x "$policy" && made=1
  fi
  local status=0 log
  log=$(mktemp)
  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"; } \
    </dev/null >"$log" 2>&1 || status=$?
  [ -n "$made" ] && rm -f "$policy"
  [ "$status" = 0 ] || tail -n 30 "$log" >&2
  rm -f "$log"
  [ "$status" = 0 ] || die "apt could not install ${missing[*]}"
}
