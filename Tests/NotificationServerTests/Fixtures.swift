/// Self-signed certificates of the name `localhost` with their keys, good for nothing but these tests.
enum Fixtures {
    static let certificate = """
        -----BEGIN CERTIFICATE-----
        MIIBfjCCASWgAwIBAgIUCuD7LLMM+J4B0nl/9QBwquUkTekwCgYIKoZIzj0EAwIw
        FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTEyMTAyNDYxNloYDzIxMjYxMDI4
        MDI0NjE2WjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
        PQMBBwNCAAQonx6LN8cQ/bGdW1XouXavGXIq27cTi3SQt8x197P6X3Rk/vCLOWcd
        lGg6wzv5oj0tyWmklY0Nc+zBS5PgkZ8To1MwUTAdBgNVHQ4EFgQUXw91nlnMCb49
        k/6YVPULpAiELuMwHwYDVR0jBBgwFoAUXw91nlnMCb49k/6YVPULpAiELuMwDwYD
        VR0TAQH/BAUwAwEB/zAKBggqhkjOPQQDAgNHADBEAiANmS4ksbAUjUNmKGnysF+n
        EDJ3xgLDexjaloGsP36r3AIgPaBAntseUg7Wu3+lFrooD13PtCRlDnR89FqO///z
        nTI=
        -----END CERTIFICATE-----
        """

    static let key = """
        -----BEGIN PRIVATE KEY-----
        MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgUE7yJBm/+PxVYwoK
        +B6/i7UEb8Gc2SptThWEw3LK8cWhRANCAAQonx6LN8cQ/bGdW1XouXavGXIq27cT
        i3SQt8x197P6X3Rk/vCLOWcdlGg6wzv5oj0tyWmklY0Nc+zBS5PgkZ8T
        -----END PRIVATE KEY-----
        """

    static let otherCertificate = """
        -----BEGIN CERTIFICATE-----
        MIIBfjCCASWgAwIBAgIUC7UbRKzRAmeNI8arRqKlbyvFTPMwCgYIKoZIzj0EAwIw
        FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTEyMTAyNDYxNloYDzIxMjUwNjE1
        MDI0NjE2WjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
        PQMBBwNCAAR0HpvR0aMolwMaoYYx3Uek7ceVPGokEs5DyVafPRcbScZ9lFs/7EFE
        hoHqbXk9fo9uq1JYO5HLwIa2hL51aqBRo1MwUTAdBgNVHQ4EFgQUWP+IJLi4/D1S
        6mo7ODXKMjHCwtMwHwYDVR0jBBgwFoAUWP+IJLi4/D1S6mo7ODXKMjHCwtMwDwYD
        VR0TAQH/BAUwAwEB/zAKBggqhkjOPQQDAgNHADBEAiBrZHZHM5yRDMOtHqvUMjnv
        qIP8/BxtjNhRn/bwIqRnzwIgc9Xn4yoKjQf6l6otTeZpZSK89ysjMhqAwgs62p/y
        sXs=
        -----END CERTIFICATE-----
        """

    static let otherKey = """
        -----BEGIN PRIVATE KEY-----
        MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgGqZumYOi1dV5OvKY
        u/+z1e2mLczyHQku4d+9akwR6iKhRANCAAR0HpvR0aMolwMaoYYx3Uek7ceVPGok
        Es5DyVafPRcbScZ9lFs/7EFEhoHqbXk9fo9uq1JYO5HLwIa2hL51aqBR
        -----END PRIVATE KEY-----
        """
}
