import JOSE

/// A header is taken exactly when, read as a tree, it says RS256, asks for no extension and has a harmless `kid`.
enum HeaderProperties {
    static func check(_ input: [UInt8]) {
        let token = Array((Base64URL.encode(input) + ".e30.AA").utf8)
        let taken = try? CompactJWS(parsing: token)
        require((taken != nil) == isTakeable(input), "a header is taken exactly when its tree is in order")
        guard let taken, let tree = try? JSONValue(parsing: input) else { return }
        require(taken.keyID == tree["kid"]?.string, "the kid is the one in the header")
        require(taken.header.carriesCertificates == (tree["x5c"] != nil), "a chain of certificates is noticed")
    }

    private static func isTakeable(_ input: [UInt8]) -> Bool {
        guard input.count <= JWSHeader.maximumLength, let tree = try? JSONValue(parsing: input) else { return false }
        guard tree.kind == .object, tree["alg"] == .string("RS256") else { return false }
        guard ["crit", "b64", "zip", "enc"].allSatisfy({ tree[$0] == nil }) else { return false }
        guard let kid = tree["kid"] else { return true }
        guard let name = kid.string else { return false }
        return 1...256 ~= name.utf8.count && name.utf8.allSatisfy { 0x21...0x7E ~= $0 }
    }
}
