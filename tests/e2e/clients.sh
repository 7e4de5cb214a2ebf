# Independent SMB clients, as they are (tests/clients), on a directory and a continuously available volume.
# long: 46
# limit: 420
[[ ${SERVER:-arden} == arden ]] || { echo "make clients has Samba beside"; exit 77; }
exec "$(dirname "$0")/../clients/run" --quick --kinds dir,ca
