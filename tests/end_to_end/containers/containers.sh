#!/usr/bin/env bash
# A throw-away Docker engine for tests: root, Debian 12 and its packages, no image registry.
#   containers.sh install          the engine, and what makes the stand-in
#   containers.sh up build|test    build: with the host's network, for `docker build --network
#                                  host`; test: cut off in a network namespace of its own
#   containers.sh base TAG         a stand-in for a Python base image, made of Debian's packages
#   containers.sh in CMD...        CMD in that namespace, whose 127.0.0.1 has the published ports
#   containers.sh down | purge     stop the engine by its pid | and delete its data
set -euo pipefail
D=${CTR_DIR:-/var/tmp/ctr}; NS=${CTR_NS:-ctr}; PIDF=$D/docker.pid
export DOCKER_HOST=unix://$D/docker.sock PATH=/usr/bin:$PATH
mkdir -p "$D"

wait_up() { for _ in $(seq 150); do docker version >/dev/null 2>&1 && return; sleep 0.1; done
            tail -20 "$D/dockerd.log" >&2; return 1; }
down() {
  if [ -s "$PIDF" ] && kill "$(cat "$PIDF")" 2>/dev/null; then
    for _ in $(seq 300); do [ -e "$PIDF" ] || break; sleep 0.1; done
  fi
  umount "$D/exec/netns/default" 2>/dev/null || true
  if [ -e "/run/netns/$NS" ]; then ip netns del "$NS"; fi
}
case ${1:?see the head of this file} in
install)
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends docker.io mmdebstrap iproute2 >"$D/apt.log" 2>&1 \
    || { tail -20 "$D/apt.log"; exit 1; } ;;
up)
  down
  args=(--data-root "$D/data" --exec-root "$D/exec" --pidfile "$PIDF" -H "$DOCKER_HOST")
  if [ "${2:-test}" = build ]; then
    setsid dockerd "${args[@]}" --bridge=none --iptables=false --ip-masq=false --ip-forward=false \
      </dev/null >"$D/dockerd.log" 2>&1 &
  else  # nsenter, not `ip netns exec`: that one remounts /sys and hides the cgroups
    ip netns add "$NS"; nsenter --net="/run/netns/$NS" ip link set lo up
    nsenter --net="/run/netns/$NS" setsid dockerd "${args[@]}" </dev/null >"$D/dockerd.log" 2>&1 &
  fi
  wait_up ;;
base)
  tag=${2:?TAG}; tar=$D/rootfs.tar
  if [ ! -s "$tar" ]; then
    work=$(mktemp -d /dev/shm/ctr.XXXXXX); trap 'rm -rf "$work"' EXIT
    # shellcheck disable=SC2016 # "$1" is for the shells that mmdebstrap starts.
    TMPDIR=$work mmdebstrap --quiet --variant=minbase --dpkgopt=force-unsafe-io \
      --include=ca-certificates,netbase,tzdata,python3,python3-pip,python3-venv \
      --customize-hook='rm -f "$1"/usr/lib/python3.*/EXTERNALLY-MANAGED' \
      --customize-hook='ln -s /usr/bin/python3 "$1"/usr/local/bin/python; ln -s /usr/bin/pip3 "$1"/usr/local/bin/pip' \
      --customize-hook='cp /usr/local/share/ca-certificates/*.crt "$1"/usr/local/share/ca-certificates/ 2>/dev/null || true' \
      --customize-hook='chroot "$1" update-ca-certificates >/dev/null 2>&1' \
      --customize-hook='printf "[global]\ncert = /etc/ssl/certs/ca-certificates.crt\n" >"$1"/etc/pip.conf' \
      bookworm "$work/rootfs.tar" /etc/apt/sources.list.d/debian.sources
    mv "$work/rootfs.tar" "$tar"
  fi
  docker import --change 'CMD ["python3"]' --change 'ENV LANG=C.UTF-8' \
    --change 'ENV SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt' \
    --change 'ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin' "$tar" "$tag" ;;
in) shift; exec nsenter --net="/run/netns/$NS" "$@" ;;
down) down ;;
purge) down; rm -rf "$D" ;;
esac
