/// The hash by which an identity token names the code or the access token that was issued with it: `c_hash` and `at_hash`
/// of an RS256 token (OpenID Connect Core §3.3.2.11).
package enum TokenHash {
    /// The left half of the SHA-256 of `token`, in base64url.
    package static func of(_ token: String) -> String {
        Base64URL.encode(Array(SHA256.digest(Array(token.utf8).span).prefix(SHA256.digestLength / 2)))
    }
}
