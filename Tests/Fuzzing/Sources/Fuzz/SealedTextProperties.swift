import JOSE

/// A sealed text opens exactly as it was sealed: no other spelling of it, and nothing that the ring did not seal.
enum SealedTextProperties {
    /// The bytes 0 to 31.
    private static let keys = Result { () throws(JOSEError) in
        try SealingKeys(parsing: "test:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=")
    }
    /// The only text in the corpus that opens.
    private static let genuine = Array(
        """
        eyJhbGciOiJkaXIiLCJlbmMiOiJBMjU2R0NNIiwia2lkIjoidGVzdCJ9..AAECAwQFBgcICQoL.PCC3eKaKt3X5Y62_g8VaDu-_4\
        lqEWWVeWwiIq3gRYd9xfMvSzrFiuliGC4Lj4kYa1HsSvXir.YFF4myUaQlem2XkNFIS-Ng
        """.utf8
    )
    private static let content = #"{"account":42,"client":"com.example.app","token":"r0"}"#

    static func check(_ input: [UInt8]) {
        guard let keys = try? keys.get() else { refuse("the ring is a constant") }
        do {
            let opened = try keys.open(input)
            require(input == genuine, "nothing opens but what was sealed")
            require(opened == Array(content.utf8), "what opens is what was sealed")
        } catch {
            require(input != genuine, "what was sealed opens")
            require(
                [.malformedSealedText, .unknownSealingKey, .notAuthentic].contains(error.code),
                "a refusal names one of three reasons"
            )
        }
        guard let sealed = try? keys.seal(input) else { refuse("any bytes can be sealed") }
        require((try? keys.open(sealed)) == input, "what was sealed opens")
        var altered = sealed
        let place = input.reduce(input.count) { ($0 &* 31 &+ Int($1)) & 0xFFFF } % sealed.count
        altered[place] ^= 1
        require((try? keys.open(altered)) == nil, "an altered text doesn't open")
    }
}
