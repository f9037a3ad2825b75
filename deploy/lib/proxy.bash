# Sourced by deploy/check-readme, for deploy/doc/proxy.md: starts nginx or Caddy with the file that the page shows, with a
# certificate of its own and on a port that needs no privileges, and lets curl find it as www.example.com.

proxy_host=www.example.com proxy_port=18443 proxy=''

start_nginx() {
    local directory=$1
    prepare_client "$directory"
    sed -e "s|listen 443 ssl|listen 127.0.0.1:$proxy_port ssl|" \
        -e "s|/etc/ssl/$proxy_host/fullchain.pem|$directory/certificate.pem|" \
        -e "s|/etc/ssl/$proxy_host/key.pem|$directory/key.pem|" "$directory/nginx-siwad.conf" >"$directory/server.conf"
    {
        # Its processes keep the user, so that they can read the directory.
        if ((EUID == 0)); then echo 'user root;'; fi
        echo "daemon off; pid $directory/nginx.pid; error_log stderr warn; events {}"
        echo "http { access_log off; include $directory/server.conf;"
        for kind in client_body proxy fastcgi uwsgi scgi; do echo "${kind}_temp_path $directory/$kind;"; done
        echo '}'
    } >"$directory/nginx.conf"
    start_proxy "$directory" nginx -p "$directory" -c "$directory/nginx.conf"
}

start_caddy() {
    local directory=$1
    prepare_client "$directory"
    sed -e "1s|{|{ \n admin off \n auto_https off|" \
        -e "s|^$proxy_host {|https://$proxy_host:$proxy_port {\n bind 127.0.0.1\n tls $directory/certificate.pem $directory/key.pem|" \
        "$directory/Caddyfile" >"$directory/Caddyfile.test"
    start_proxy "$directory" caddy run --adapter caddyfile --config "$directory/Caddyfile.test"
}

# The certificate, and the settings by which curl reaches the proxy and trusts it.
prepare_client() {
    local directory=$1
    [[ -e $directory/key.pem ]] || openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 \
        -subj "/CN=$proxy_host" -addext "subjectAltName=DNS:$proxy_host" \
        -keyout "$directory/key.pem" -out "$directory/certificate.pem" 2>/dev/null
    printf 'connect-to = "%s:443:127.0.0.1:%s"\ncacert = "%s"\n' "$proxy_host" "$proxy_port" "$directory/certificate.pem" \
        >"$directory/.curlrc"
    export CURL_HOME=$directory
}

start_proxy() {
    local directory=$1 waited=0
    shift
    PATH=$PATH:/usr/sbin "$@" >"$directory/proxy.log" 2>&1 &
    proxy=$!
    until curl --silent --output /dev/null "https://$proxy_host/"; do
        if ! kill -0 "$proxy" 2>/dev/null || ((waited >= 100)); then
            cat "$directory/proxy.log" >&2
            return 1
        fi
        sleep 0.1
        waited=$((waited + 1))
    done
}

stop_proxy() {
    kill "$proxy"
    wait "$proxy" || true
}
