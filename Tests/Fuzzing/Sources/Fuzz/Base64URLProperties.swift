import JOSE

/// Every byte string has exactly one spelling.
enum Base64URLProperties {
    static func check(_ input: [UInt8]) {
        let text = Base64URL.encode(input)
        require((try? Base64URL.decode(text)) == input, "what was encoded is decoded to the same bytes")
        guard let decoded = try? Base64URL.decode(input.span) else { return }
        require(Base64URL.encode(decoded).utf8.elementsEqual(input), "a text that is decoded is the one spelling")
    }
}
