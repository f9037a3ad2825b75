import AppleSimulator
import AppleTokens
import Basics
import JOSE
import Listening
import Terminal
import WebClient
import WebServer

/// The second part of the demonstration of `siwad dev`: a native app and its backend sign a person in through the application
/// endpoint, and a notification ends the session.
struct DemonstrationSignIn: Sendable {
    private static let person = "eve"

    let apple: LocalApple
    let client: ClientID
    /// The path of the application endpoint.
    let socket: String
    let loops: EventLoops
    let console: Console

    private struct Response {
        let status: Int
        let body: JSONValue
    }

    /// - Parameter deliveries: the changes that the application gets; nil: there is no application.
    /// - Returns: whether every step had the expected effect, and Eve's account; nil if she could not sign in.
    func play(
        telling deliveries: inout DemonstrationDeliveries?
    ) async throws -> (isAsExpected: Bool, subject: Subject?) {
        let session = "eve-" + String(UInt64.random(in: .min ... .max), radix: 36)
        let nonce = try await post("nonces", [.init("client_id", .string(client.rawValue))])
        guard nonce.status == 200, let secret = nonce.body["nonce"]?.string, let hash = nonce.body["sha256"]?.string
        else { return (report("Eve wants to sign in.", nonce, isRight: false, "a nonce for her device"), nil) }
        let device = try await control(.signIn, nonce: hash)
        func request(_ session: String) -> [JSONValue.Member] {
            [
                .init("client_id", .string(client.rawValue)),
                .init("identity_token", device["identityToken"] ?? .null),
                .init("authorization_code", device["authorizationCode"] ?? .null),
                .init("nonce", .string(secret)), .init("user", device["user"] ?? .null),
                .init(
                    "session",
                    .object([.init("id", .string(session)), .init("expires_in", .number(JSONNumber(3_600)))])
                ),
            ]
        }
        let signedIn = try await post("sign-in", request(session))
        let isSignedIn = report(
            "Eve signs in with her phone; the backend of the app sends what the phone got to siwad.",
            signedIn,
            isRight: signedIn.status == 200 && signedIn.body["refresh_token"] == .string("stored")
                && signedIn.body["session"]?["live"] == .boolean(true),
            "Token verified, code exchanged, refresh token stored encrypted, session live"
        )
        let stolen = try await post("sign-in", request(session + "-2"))
        let isRefused = report(
            "A thief presents the same token and code.",
            stolen,
            isRight: stolen.status == 422 && stolen.body["reason"] == .string("token-used"),
            "Refused: a token works once"
        )
        let subject = signedIn.body["account"]?["sub"]?.string
        let isStopped = try await stopUsing(session, of: subject, telling: &deliveries)
        return (isSignedIn && isRefused && isStopped, subject.map { Subject($0) })
    }

    private func stopUsing(
        _ session: String,
        of subject: String?,
        telling deliveries: inout DemonstrationDeliveries?
    ) async throws -> Bool {
        deliveries?.stepBegins()
        let stopped = try await control(.stopUsing)
        let notification = stopped["notifications"]?.array?.first?["status"]?.integer
        let ended = try await get("sessions/\(session)")
        let isEnded = report(
            "Eve stops using the app: Apple notifies siwad, which answers \(notification.map(String.init) ?? "nothing").",
            ended,
            isRight: notification == 200 && ended.body["live"] == .boolean(false)
                && ended.body["end_reason"] == .string("consent-revoked"),
            "Her session is ended"
        )
        let revocation = subject.map { DemonstrationDeliveries.Change(subject: $0, type: "siwa.consent.revoked") }
        let isTold = try await deliveries?.tell(revocation) ?? true
        return isEnded && isTold
    }

    private func report(_ title: String, _ response: Response, isRight: Bool, _ expectation: String) -> Bool {
        let mark = isRight ? console.style.painted("✓", .green) : console.style.painted("✗", .red)
        console.print("\n\(mark) \(title)")
        if isRight {
            console.print("    \(response.status): \(expectation)")
        } else {
            console.print("    expected: \(expectation); got \(response.status): \(response.body.compactText)")
        }
        return isRight
    }

    // MARK: Requests

    private func control(_ control: TokenServer.Control, nonce: String? = nil) async throws -> JSONValue {
        var members: [JSONValue.Member] = [
            .init("person", .string(Self.person)), .init("client_id", .string(client.rawValue)),
        ]
        if let nonce { members.append(.init("nonce", .string(nonce))) }
        let answer = await apple.perform(control, Array(JSONValue.object(members).compactText.utf8))
        guard answer.status == 200 else {
            throw CommandFailure(.failed, "the simulated Apple answered \(answer.status): \(answer.body)")
        }
        return try JSONValue(parsing: Array(answer.body.utf8))
    }

    private func post(_ path: String, _ members: [JSONValue.Member]) async throws -> Response {
        try Self.parsed(
            await LocalProbe.post(
                url(path),
                json: JSONValue.object(members).compactText,
                version: Version.current,
                eventLoopGroup: loops.group
            )
        )
    }

    private func get(_ path: String) async throws -> Response {
        try Self.parsed(
            await LocalProbe.get(url(path), version: Version.current, eventLoopGroup: loops.group)
        )
    }

    private func url(_ path: String) -> String {
        "http+unix://\(socket.percentEncoded)/v1/\(path)"
    }

    private static func parsed(_ response: LocalProbe.Response) throws -> Response {
        Response(status: response.status, body: try JSONValue(parsing: Array(response.body.utf8)))
    }
}
