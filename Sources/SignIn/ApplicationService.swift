package import AppleTokens
package import Basics
import JOSE

/// What the application endpoint does for its callers. A caller is nil where no tokens are configured.
package protocol ApplicationService: Sendable {
    /// The task must not be cancelled when the caller's connection breaks: the code works once, so its refresh token would be
    /// lost.
    func signIn(_ request: SignInRequest, by caller: Caller?) async throws(Problem) -> SignInAnswer

    /// A request to sign in was refused before ``signIn(_:by:)``.
    func signInRefused(_ problem: Problem, by caller: Caller?)

    func issueNonce(for client: ClientID, by caller: Caller?) async throws(Problem) -> IssuedNonce

    /// - Throws: `not-found` for a session that doesn't exist or that the caller may not see.
    func session(_ id: String, by caller: Caller?) async throws(Problem) -> SessionAnswer

    /// Signs out. An ended session stays as it is.
    /// - Throws: `not-found` as ``session(_:by:)``.
    func endSession(_ id: String, by caller: Caller?) async throws(Problem)
}

extension ApplicationService {
    package func signInRefused(_ problem: Problem, by caller: Caller?) {}
}

/// A nonce for one attempt to sign in.
package struct IssuedNonce: Sendable, Equatable {
    package let nonce: String
    /// The SHA-256 of the nonce in lower-case hexadecimal, which native apps pass to Apple.
    package let sha256: String
    package let expiresIn: Duration

    package init(nonce: String, sha256: String, expiresIn: Duration) {
        self.nonce = nonce
        self.sha256 = sha256
        self.expiresIn = expiresIn
    }

    package var json: String {
        "{\"nonce\":\"\(nonce)\",\"sha256\":\"\(sha256)\",\"expires_in\":\(expiresIn.components.seconds)}"
    }

    /// The client that a request for a nonce names.
    package static func client(parsing body: [UInt8]) throws(Problem) -> ClientID {
        let members = try RequestMembers(parsing: body)
        return ClientID(try members.requiredText("client_id", 1...255))
    }
}

package struct SessionAnswer: Sendable, Equatable {
    package let isLive: Bool
    package let endedAt: WallTime?
    /// As in `siwa.sessions`.
    package let endReason: String?

    package init(isLive: Bool, endedAt: WallTime?, endReason: String?) {
        self.isLive = isLive
        self.endedAt = endedAt
        self.endReason = endReason
    }

    package var json: String {
        JSONValue.answer(
            ("live", .boolean(isLive)),
            ("ended_at", endedAt.map(JSONValue.time) ?? .null),
            ("end_reason", .text(endReason))
        ).compactText
    }
}
