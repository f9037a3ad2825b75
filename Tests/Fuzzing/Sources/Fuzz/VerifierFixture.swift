import AppleTokens
import Basics
import JOSE

/// A key set, the only tokens that its private key signed, and a verifier for one app.
///
/// The private key was deleted, so any other token that this set verifies is a forgery.
struct VerifierFixture {
    let keys: KeySet
    let verifier: NotificationVerifier

    nonisolated(unsafe) static let shared = VerifierFixture()

    static let issuer = NotificationPolicy.appleIssuer
    static let keyID = "CK8u4sKnBF"
    static let header = "eyJraWQiOiJDSzh1NHNLbkJGIiwiYWxnIjoiUlMyNTYifQ"
    /// Ten seconds after the tokens were issued.
    static let now = WallTime(seconds: 1_770_000_010)
    /// A revocation, a disabled address, and a notification for an app that is not configured.
    static let genuine: [[UInt8]] = [
        """
        eyJraWQiOiJDSzh1NHNLbkJGIiwiYWxnIjoiUlMyNTYifQ.eyJpc3MiOiJodHRwczovL2FwcGxlaWQuYXBwbGUuY29tIiwiYXVkI\
        joiY29tLmV4YW1wbGUuYXBwIiwiZXhwIjoxNzcwMDg2NDAwLCJpYXQiOjE3NzAwMDAwMDAsImp0aSI6IlMyNWNCMFBiSHM2eTk3Z\
        1lZbWd5ZFEiLCJldmVudHMiOiJ7XCJ0eXBlXCI6XCJjb25zZW50LXJldm9rZWRcIixcInN1YlwiOlwiMDAwNzY4LjYxNjZmMDMxM\
        TY3MTQxZTY5NTY5ODIzOTk1OWY1OTFhLjE1MjFcIixcImV2ZW50X3RpbWVcIjoxNzY5OTk5OTkwMTIzfSJ9.XqaXBTOhLN1jzUA5\
        W2C9nW2a9vE-Ssez2cLmhRYsa9419PfoBj3rf8-Bb9GDKrRf2jPAagyTuUWizBT7aAd4faB6LNaI-3hI-xQwQfjk-mxgIJx0OZ-u\
        vg4sEJmbODl7TOG0jeuBJSaRB6G2D_Ic-FGs34huMcocqMKo0UAqPIEtfEYGRUTFe3K6U0xweLDnOMHrwewxIEhWRER9Emu6dy4S\
        HJxfCIq3Rvv0KK3UcE1yQI1MklR3c-ZpOM8mdtReJEAcNkOz64zIKCGqJT6PpwW6RvZKxwuQSVc-dAYdilWPNbJHZNi5IzME7a_p\
        M9ftmIBImIzU5f2kOjXLDr_RXQ
        """,
        """
        eyJraWQiOiJDSzh1NHNLbkJGIiwiYWxnIjoiUlMyNTYifQ.eyJpc3MiOiJodHRwczovL2FwcGxlaWQuYXBwbGUuY29tIiwiYXVkI\
        joiY29tLmV4YW1wbGUuYXBwIiwiZXhwIjoxNzcwMDg2NDAwLCJpYXQiOjE3NzAwMDAwMDAsImp0aSI6InNlY29uZCIsImV2ZW50c\
        yI6IntcInR5cGVcIjpcImVtYWlsLWRpc2FibGVkXCIsXCJzdWJcIjpcIjAwMDc2OC42MTY2ZjAzMTE2NzE0MWU2OTU2OTgyMzk5N\
        TlmNTkxYS4xNTIxXCIsXCJlbWFpbFwiOlwiYWJjMTIzQHByaXZhdGVyZWxheS5hcHBsZWlkLmNvbVwiLFwiaXNfcHJpdmF0ZV9lb\
        WFpbFwiOlwidHJ1ZVwiLFwiZXZlbnRfdGltZVwiOjE3Njk5OTk5OTAxMjN9In0.X1eB2QOGHMNSg3JxcZO6ZcjpDtzBNKWahDIQQ\
        LIuxMJIyjIcRdfsUgqP2SjWXJtMG9rf1k3Unf0HEymba-cKwG_5Cm4CR_i8jPIjVBhaMPI8_-XVjUnc8q_relQgvtTffQQxe9uoe\
        NyZ2TBQqqTu-XvGiaQhnYpuUWGuX3KEFZFQw9x5dD_xpSUfCfJrK_6Ljm_VL-w3Wrok9ZlS7mV3S5BeW-rOXjrhnq9kMOYhqUCx-\
        aniUwsFo3P1DbSh7wvdU_CoBm6jpIPf1nazfpv0LopIiOu1J7w47QT1iuHu2xh3y-QiTBxKk8SNCexruW9BYi69PvX_bMdo5m2Ei\
        oxd2g
        """,
        """
        eyJraWQiOiJDSzh1NHNLbkJGIiwiYWxnIjoiUlMyNTYifQ.eyJpc3MiOiJodHRwczovL2FwcGxlaWQuYXBwbGUuY29tIiwiYXVkI\
        joib3JnLnVua25vd24iLCJleHAiOjE3NzAwODY0MDAsImlhdCI6MTc3MDAwMDAwMCwianRpIjoidGhpcmQiLCJldmVudHMiOiJ7X\
        CJ0eXBlXCI6XCJhY2NvdW50LWRlbGV0ZWRcIixcInN1YlwiOlwiMDAwNzY4LjYxNjZmMDMxMTY3MTQxZTY5NTY5ODIzOTk1OWY1O\
        TFhLjE1MjFcIixcImV2ZW50X3RpbWVcIjoxNzY5OTk5OTkwMTIzfSJ9.HSnZk849Th8gwmpA80X_ESwwIHq_NUDr-GwHojXviDXr\
        Uv6axOMw7MzIRBFqaYpVufV3Xp4fo9JlMWwa6ylt2--o7QdeIBXCD7Bh7O6MuUpSrxOWvOxHCdk1jHVCvvc1ErMrFwSkqZSPFDWc\
        xiCSqCkuJj4WMNTucvdLaF-violKsvfaMSOh73JyaXr6nBFyAFLR90NNa6-PXOLfHv4AIdrzHq6JB-ZrWQoHYcrTgJNs9rZHYmAp\
        BA9bEyCV5vKcN_IB0WrIUGiBowv6r6LymaQvujkXxlDE-ZHFA87rykN5CNNGW0mQrlAKHenOGR7VC-2AF2oY4XfVJDmXeL_44A
        """,

    ].map { Array($0.utf8) }

    private static let modulus =
        """
        i-wMaZ4Wzt7_MqpJ1ns00ExBadOwL4XargYlsLlqIGVCP9H6k-WxnkYhtoPryQQOq6UUpreQ6bFFNrZQ6IFm6Oz1r-kMzZEymDrG\
        Q1ES1N5pB9ykAHE74KsVyOmQRn30oPN3bkCiVNFFBmesxFx4YGNX35n6wKxq4CGsncTrsqsStyyQw_74OvvvO0A2647VFtols44j\
        M_RR8e3usJDCgv2jdJDCtDXczQSY3W3XQUltLdzIca19nENNB44OtkCu4aNe14hqtBuUiqZggAN6VS00mWQ-34XFW7LUVuEbCsuo\
        XHn7oQv7cD7YAGtSMDqo882QKYO6iRfCTEzOxXD25Q
        """

    private init() {
        guard let n = try? Base64URL.decode(Self.modulus),
            let key = try? RSAPublicKey(modulus: n, exponent: [1, 0, 1]),
            let named = try? JSONWebKey(keyID: Self.keyID, publicKey: key),
            let audiences = try? AudienceMap(parsing: "A1B2C3D4E5/com.example.app+com.example.web")
        else { preconditionFailure("the key and the apps are constants") }
        keys = KeySet([named], fetchedAt: nil)
        verifier = NotificationVerifier(policy: NotificationPolicy(audiences: audiences))
    }
}
