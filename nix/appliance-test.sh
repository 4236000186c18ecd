#!/bin/sh
# Boots this machine's own /usr read-only, with empty /etc and /var and no network, under a real systemd; starts the unit
# that Nix rendered, asks it one question, and stops it.
#
# usage: appliance-test.sh UNITDIR PYTHON     PYTHON: an interpreter in /nix/store, for the question
set -eu
here=$(cd "$(dirname "$0")" && pwd)
etc=$(mktemp -d)
trap 'rm -rf "$etc"' EXIT
wants=$etc/multi-user.target.wants
mkdir -p "$wants" "$etc/imp-server.service.d"
cp "$1/imp-server.service" "$here/chat.py" "$etc/"
printf '[Unit]\nAfter=\nWants=\n' > "$etc/imp-server.service.d/no-network.conf"
cat > "$etc/question.sh" <<END
systemctl show imp-server -p ActiveState,SubState,NRestarts
systemctl reload imp-server && echo RELOADED=yes
$2 -I /etc/systemd/system/chat.py http://127.0.0.1:8080 180 && echo ANSWER=right
systemctl stop imp-server
systemctl show imp-server -p ActiveState,Result,ExecMainStatus,NRestarts
journalctl --no-pager -o cat -n 60 -u imp-server
systemctl exit
END
cat > "$etc/question.service" <<'END'
[Unit]
After=imp-server.service
[Service]
Type=oneshot
StandardOutput=journal+console
StandardError=journal+console
ExecStart=/bin/sh /etc/systemd/system/question.sh
END
ln -s ../imp-server.service ../question.service "$wants/"
for unit in systemd-firstboot.service systemd-networkd.service networking.service console-getty.service getty.target \
  apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer fstrim.timer; do
  ln -s /dev/null "$etc/$unit"
done
timeout -k 20 280 systemd-nspawn -q -D / --volatile=yes --bind-ro=/nix --bind-ro="$etc":/etc/systemd/system \
  --private-network --register=no --keep-unit -b \
  systemd.log_level=warning systemd.show_status=0 systemd.firstboot=off systemd.unit=multi-user.target \
  < /dev/null > "$etc/log" 2>&1 || true
cat "$etc/log"
for line in ActiveState=active SubState=running RELOADED=yes ANSWER=right ActiveState=inactive Result=success ExecMainStatus=0; do
  grep -q "$line" "$etc/log" || { echo "appliance-test.sh: the boot did not show $line" >&2; exit 1; }
done
if grep -q 'NRestarts=[1-9]' "$etc/log"; then
  echo "appliance-test.sh: the server was restarted" >&2
  exit 1
fi
