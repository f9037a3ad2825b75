import JOSE

/// The keys of a set are fit for RS256, each with a name of its own, and written they are the same keys.
enum KeySetProperties {
    static func check(_ input: [UInt8]) {
        guard let set = try? JSONWebKeySet(parsing: input) else { return }
        require(1...JSONWebKeySet.maximumCount ~= set.keys.count, "a set has 1 to 64 keys")
        require(Set(set.keys.map(\.keyID)).count == set.keys.count, "each key has a name of its own")
        for key in set.keys {
            require(1...256 ~= key.keyID.utf8.count, "a name has 1 to 256 bytes")
            require(RSAPublicKey.modulusBits.contains(key.publicKey.bits), "a modulus has 2048 to 8192 bits")
            require(key.publicKey.exponent >= 65_537 && key.publicKey.exponent & 1 == 1, "an exponent is odd and large")
            guard let verifier = try? RSAVerifier(key.publicKey) else {
                return require(false, "a key that was checked can be used")
            }
            let signature = [UInt8](repeating: 2, count: key.publicKey.modulus.count)
            require(!verifier.isValid(signature: signature.span, over: input.span), "no signature is made up")
        }
        let again = try? JSONWebKeySet(parsing: Array(set.json.utf8))
        require(again?.keys == set.keys, "a set is written as the same set")
    }
}
