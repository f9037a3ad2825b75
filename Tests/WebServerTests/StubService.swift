import AppleTokens
import Basics
import SignIn
import Synchronization

/// A service that records its calls and gives the answers of the test.
final class StubService: ApplicationService {
    typealias Behaviour = @Sendable () async throws(Problem) -> Void

    struct Call: Sendable, Equatable {
        let operation: String
        let subject: String
        let caller: Caller?
    }

    struct Refusal: Sendable, Equatable {
        let reason: Problem.Reason
        let caller: Caller?
    }

    /// Runs at the start of each call.
    private let behaviour: Behaviour
    private let recorded = Mutex<[Call]>([])
    private let refused = Mutex<[Refusal]>([])

    init(_ behaviour: @escaping Behaviour = { () throws(Problem) in }) {
        self.behaviour = behaviour
    }

    var calls: [Call] { recorded.withLock { $0 } }

    /// The requests to sign in that were refused before they were served, or at their deadline.
    var refusals: [Refusal] { refused.withLock { $0 } }

    func signIn(_ request: SignInRequest, by caller: Caller?) async throws(Problem) -> SignInAnswer {
        try await begin("sign-in", request.client.rawValue, caller)
        return Self.answer
    }

    func signInRefused(_ problem: Problem, by caller: Caller?) {
        refused.withLock { $0.append(Refusal(reason: problem.reason, caller: caller)) }
    }

    func issueNonce(for client: ClientID, by caller: Caller?) async throws(Problem) -> IssuedNonce {
        try await begin("nonce", client.rawValue, caller)
        return IssuedNonce(
            nonce: "8sIboQ4mZ1x7",
            sha256: String(repeating: "0", count: 64),
            expiresIn: .seconds(600)
        )
    }

    func session(_ id: String, by caller: Caller?) async throws(Problem) -> SessionAnswer {
        try await begin("session", id, caller)
        return SessionAnswer(isLive: true, endedAt: nil, endReason: nil)
    }

    func endSession(_ id: String, by caller: Caller?) async throws(Problem) {
        try await begin("end", id, caller)
    }

    private func begin(_ operation: String, _ subject: String, _ caller: Caller?) async throws(Problem) {
        recorded.withLock { $0.append(Call(operation: operation, subject: subject, caller: caller)) }
        try await behaviour()
    }

    static let answer = SignInAnswer(
        signInID: 8123,
        isRepeated: false,
        isNewAccount: true,
        signedInAt: WallTime(seconds: 1_795_543_327),
        account: SignInAnswer.Account(
            id: 42,
            team: TeamID("A1B2C3D4E5"),
            subject: Subject("000768.6166f031167141e695698239959f591a.1521"),
            app: AppID("com.example.app"),
            client: ClientID("com.example.app"),
            state: "authorized"
        ),
        email: SignInAnswer.Email(address: "a@privaterelay.appleid.com", isPrivate: true, isDeliverable: true),
        name: SignInAnswer.Name(given: "Maria", family: nil, capturedAt: WallTime(seconds: 1_795_543_327)),
        realUserStatus: "likely-real",
        refreshToken: .stored,
        session: SignInAnswer.Session(
            id: "a3f1c5d2",
            isLive: true,
            createdAt: WallTime(seconds: 1_795_543_327),
            expiresAt: nil
        )
    )
}
