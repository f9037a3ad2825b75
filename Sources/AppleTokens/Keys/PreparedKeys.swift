import JOSE

/// The keys of the current set, prepared for verification. Belongs to one thread.
final class PreparedKeys {
    private var version: Int?
    private var verifiers: [(kid: String, verifier: RSAVerifier)] = []

    func verifier(_ kid: String, of keys: KeySet) -> RSAVerifier? {
        if version != keys.version {
            // Preparing a checked key fails only without memory. Its tokens are then answered 503 keys-unavailable, and the
            // next token prepares the keys again.
            verifiers = keys.keys.compactMap { key in
                (try? RSAVerifier(key.publicKey)).map { (key.keyID, $0) }
            }
            version = verifiers.count == keys.keys.count ? keys.version : nil
        }
        return verifiers.first { $0.kid == kid }?.verifier
    }
}
