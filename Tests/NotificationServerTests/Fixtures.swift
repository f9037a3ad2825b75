/// A second self-signed certificate for `localhost`, with its key.
enum Fixtures {
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
