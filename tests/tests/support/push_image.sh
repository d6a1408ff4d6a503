#!/usr/bin/env bash
# push_image.sh REGISTRY REPOSITORY TAG CONFIG LAYER..   puts an image into a registry without TLS: CONFIG is the JSON of `config`,
# each LAYER a tar. Prints the digest of its manifest.
set -euo pipefail
registry=$1 repository=$2 tag=$3 settings=$4
shift 4
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

sum() { sha256sum "$1" | cut -d' ' -f1; }
put() { # FILE: a blob
    local at
    at=$(curl -fsS -X POST -D- -o/dev/null "http://$registry/v2/$repository/blobs/uploads/" | tr -d '\r' | sed -n 's/^location: //Ip')
    curl -fsS -X PUT -H 'Content-Type: application/octet-stream' -T "$1" "$at&digest=sha256:$(sum "$1")" >/dev/null
}

layers='' ids='' n=0
for layer in "$@"; do
    n=$((n + 1))
    gzip -1 -n <"$layer" >"$dir/$n"
    put "$dir/$n"
    layers+=",{\"mediaType\":\"application/vnd.oci.image.layer.v1.tar+gzip\",\"digest\":\"sha256:$(sum "$dir/$n")\",\"size\":$(stat -c %s "$dir/$n")}"
    ids+=",\"sha256:$(sum "$layer")\""
    rm "$dir/$n"
done
architecture=$(dpkg --print-architecture)
printf '{"architecture":"%s","os":"linux","config":%s,"rootfs":{"type":"layers","diff_ids":[%s]}}' \
    "$architecture" "$settings" "${ids#,}" >"$dir/config"
put "$dir/config"
printf '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"sha256:%s","size":%s},"layers":[%s]}' \
    "$(sum "$dir/config")" "$(stat -c %s "$dir/config")" "${layers#,}" >"$dir/manifest"
curl -fsS -X PUT -H 'Content-Type: application/vnd.oci.image.manifest.v1+json' --data-binary "@$dir/manifest" \
    "http://$registry/v2/$repository/manifests/$tag" >/dev/null
sum "$dir/manifest"
