/// The fuzzed parsers. Each target accepts any bytes and ends the process if a property does not hold. The runtime and
/// AddressSanitizer also end it for traps, overflows and accesses out of bounds.
enum FuzzTarget: String, CaseIterable {
    /// Base64url: one spelling for each byte string.
    case base64URL = "base64url"
    /// The JSON reader.
    case json
    /// The header of a token, as JSON.
    case header
    /// A compact JWS.
    case token
    /// The claims of a token that Apple signed.
    case claims
    /// The body of a request, up to the decision.
    case body
    /// The bytes of a connection, in pieces.
    case http
    /// A key set.
    case keySet = "key-set"
    /// A file of the spool.
    case spool
    /// The claims of an identity token that Apple signed.
    case identity
    /// A sealed secret: a compact JWE.
    case sealedText = "sealed-text"
    /// The file of a key, as Apple's portal offers it.
    case privateKey = "private-key"
    /// An answer of Apple's token endpoint.
    case tokenAnswer = "token-answer"
    /// The body of a request to sign a person in.
    case signInRequest = "sign-in-request"

    /// What libFuzzer calls for each input.
    var entry: @convention(c) (UnsafePointer<UInt8>?, Int) -> Int32 {
        switch self {
        case .base64URL: { fuzz($0, $1, Base64URLProperties.check) }
        case .json: { fuzz($0, $1, JSONProperties.check) }
        case .header: { fuzz($0, $1, HeaderProperties.check) }
        case .token: { fuzz($0, $1, TokenProperties.check) }
        case .claims: { fuzz($0, $1, ClaimProperties.check) }
        case .body: { fuzz($0, $1, BodyProperties.check) }
        case .http: { fuzz($0, $1, HTTPProperties.check) }
        case .keySet: { fuzz($0, $1, KeySetProperties.check) }
        case .spool: { fuzz($0, $1, SpoolProperties.check) }
        case .identity: { fuzz($0, $1, IdentityProperties.check) }
        case .sealedText: { fuzz($0, $1, SealedTextProperties.check) }
        case .privateKey: { fuzz($0, $1, PrivateKeyProperties.check) }
        case .tokenAnswer: { fuzz($0, $1, TokenAnswerProperties.check) }
        case .signInRequest: { fuzz($0, $1, SignInRequestProperties.check) }
        }
    }
}

private func fuzz(_ bytes: UnsafePointer<UInt8>?, _ count: Int, _ check: ([UInt8]) -> Void) -> Int32 {
    check(Array(UnsafeBufferPointer(start: bytes, count: count)))
    return 0
}
