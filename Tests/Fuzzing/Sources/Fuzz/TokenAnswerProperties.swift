import JOSE
import TokenAnswers

/// An answer of Apple's token endpoint means what its status and its member `error` say, and nothing else in it matters.
enum TokenAnswerProperties {
    private static let statuses = [200, 400, 429, 500, 302, 201, 401, 403, 404, 503, 100, 600]
    private static let delays: [String?] = [nil, "", "7", "-1", "soon", "99999999999999999999"]

    /// - Parameter input: the places of the status and of `Retry-After`, and the body.
    static func check(_ input: [UInt8]) {
        guard input.count >= 2 else { return }
        let status = statuses[Int(input[0]) % statuses.count]
        let delay = delays[Int(input[1]) % delays.count]
        let body = Array(input.dropFirst(2))
        let tree = try? JSONValue(parsing: body)
        let answer = TokenAnswer(status: status, retryAfter: delay, body: body)
        switch answer {
        case .issued(let tokens):
            require(status == 200, "tokens come with 200")
            guard let access = tree?["access_token"]?.string else { refuse("tokens have an access token") }
            require(tokens.accessTokenHash == TokenHash.of(access), "the hash is that of the access token")
            require(tokens.refreshToken == tree?["refresh_token"]?.string, "the refresh token is the one in the body")
            require(tokens.identityToken == tree?["id_token"]?.string, "the identity token is the one in the body")
            require("\(answer)".utf8.count < 64, "a description has no token")
        case .grantRefused(let refusal):
            require(tree?["error"] == .string("invalid_grant"), "a grant is refused as invalid_grant")
            require(refusal.code == .invalidGrant, "a refusal keeps the code")
            checkRefusal(refusal, status)
        case .requestRefused(let refusal):
            require(tree?["error"] == .string("invalid_request"), "a request is refused as invalid_request")
            checkRefusal(refusal, status)
        case .clientRefused(let refusal):
            require(tree?["error"]?.string == refusal.code.rawValue, "a refusal keeps the code")
            require(![.invalidGrant, .invalidRequest].contains(refusal.code), "other codes are about the client")
            checkRefusal(refusal, status)
        case .unavailable(let cause):
            require((cause.retryAfter ?? 0) >= 0, "a delay is not negative")
            require(status != 429 || cause.cause == .throttled, "429 throttles")
            require(status < 500 || cause.cause == .serverError, "5xx is an error of the server")
        }
    }

    private static func checkRefusal(_ refusal: TokenRefusal, _ status: Int) {
        require(400..<500 ~= status && status != 429, "a refusal comes with 4xx")
        require(1...64 ~= refusal.code.rawValue.utf8.count, "a code has 1 to 64 bytes")
    }
}
