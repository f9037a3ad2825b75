import JOSE

/// A token that is taken is the only spelling of its parts.
enum TokenProperties {
    static func check(_ input: [UInt8]) {
        guard let token = try? CompactJWS(parsing: input) else { return }
        let parts = input.split(separator: UInt8(ascii: "."), omittingEmptySubsequences: false)
        require(parts.count == 3, "a token has three parts")
        require(token.bytes == input, "the token is kept as it came")
        require(token.header.algorithm == "RS256", "nothing but RS256 is taken")
        require(Base64URL.encode(token.payload).utf8.elementsEqual(parts[1]), "the payload has one spelling")
        require(Base64URL.encode(token.signature).utf8.elementsEqual(parts[2]), "the signature has one spelling")
        require(!token.signature.isEmpty, "a token has a signature")
        let signed = parts[0] + [UInt8(ascii: ".")] + parts[1]
        require(input[token.signingInputRange].elementsEqual(signed), "header and payload are what is signed")
    }
}
