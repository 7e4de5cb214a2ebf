# Transparent restart as in restart.sh, on a share of a volume.
# long: 50
# limit: 900
export VOLUME=1
exec bash "$(dirname "$0")/restart.sh"
