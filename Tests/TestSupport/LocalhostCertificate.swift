/// A self-signed certificate of the name `localhost`, good for nothing but tests.
package enum LocalhostCertificate {
    /// In PEM.
    package static let pem = """
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

    /// Its private key, in PEM.
    package static let key = """
        -----BEGIN PRIVATE KEY-----
        MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgUE7yJBm/+PxVYwoK
        +B6/i7UEb8Gc2SptThWEw3LK8cWhRANCAAQonx6LN8cQ/bGdW1XouXavGXIq27cT
        i3SQt8x197P6X3Rk/vCLOWcdlGg6wzv5oj0tyWmklY0Nc+zBS5PgkZ8T
        -----END PRIVATE KEY-----
        """
}
