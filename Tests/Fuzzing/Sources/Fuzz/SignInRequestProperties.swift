import AppleTokens
import JOSE
import SignIn

/// A request to sign in is within its bounds, or refused as malformed in strict JSON that quotes nothing of it.
enum SignInRequestProperties {
    static func check(_ input: [UInt8]) {
        do {
            check(try SignInRequest(parsing: input, idempotencyKey: nil), of: input)
        } catch {
            require(error.reason == .malformedRequest, "a body that is not in order is malformed")
            let problem = try? JSONValue(parsing: Array(error.json.utf8))
            require(problem?["reason"] == .string("malformed-request"), "a problem is strict JSON")
            require(error.detail.utf8.count < 256, "a problem quotes no text of the request")
        }
    }

    private static func check(_ request: SignInRequest, of input: [UInt8]) {
        guard let tree = try? JSONValue(parsing: input) else { refuse("a request is strict JSON") }
        require(tree["client_id"]?.string == request.client.rawValue, "the client is the one in the body")
        require(request.identityToken != nil || request.authorizationCode != nil, "there is something to verify")
        require(1...16_384 ~= (request.identityToken?.count ?? 1), "a token has at most 16 KiB")
        for (text, length) in [
            (request.authorizationCode, 1...1_024), (request.nonce, 8...256), (request.redirectURI, 9...2_000),
        ] {
            guard let text else { continue }
            require(length.contains(text.utf8.count), "a text is within its length")
            require(text.utf8.allSatisfy { 0x21...0x7E ~= $0 }, "a text is visible ASCII")
        }
        for part in [request.name?.given, request.name?.family].compactMap(\.self) {
            require(1...100 ~= part.unicodeScalars.count, "a name has at most 100 characters")
            require(
                !part.unicodeScalars.contains(where: isControl),
                "a name has no control characters"
            )
            require(PersonName(given: part, family: nil)?.given == part, "a clean name stays as it is")
        }
        if let session = request.session {
            require(1...256 ~= session.id.utf8.count && !session.id.utf8.contains(0), "a session id can be stored")
        }
        for text in [request.device?.platform, request.device?.model, request.device?.label].compactMap(\.self) {
            require(text.unicodeScalars.count <= 100 && !text.utf8.contains(0), "a device can be stored")
        }
        require(Mirror(reflecting: request).children.isEmpty, "nothing of a request is printed")
    }

    private static func isControl(_ scalar: Unicode.Scalar) -> Bool {
        scalar.properties.generalCategory == .control || scalar.properties.isBidiControl
    }
}
