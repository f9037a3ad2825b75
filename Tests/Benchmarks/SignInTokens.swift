import AppleSimulator
import Basics
import FoundationEssentials
import JOSE

/// Requests to sign in, one per line, and what Apple answers to their codes.
struct SignInTokens: Sendable {
    static let bearer = "a-token-of-the-benchmark"
    static let client = Population.app

    /// File of requests with a code.
    let withCode: String
    /// File of the same requests without their code.
    let withoutCode: String
    /// Apple's answers, by the number in the code.
    let answers: [String]

    private struct Attempt: Sendable {
        let request: String
        let code: String
        let answer: String
    }

    /// Signs two tokens for each request, of the second half of the people.
    static func minted(_ count: Int, people: Int, with apple: SimulatedApple, in directory: String) async throws -> Self
    {
        Progress.note("signing \(count) identity tokens, and Apple's answers")
        let now = WallTime.now().wholeSeconds
        let share = (count + Machine.cores - 1) / Machine.cores
        let parts = try await withThrowingTaskGroup(of: (Int, [Attempt]).self) { group in
            for part in 0..<Machine.cores {
                group.addTask {
                    let range = part * share..<min(count, (part + 1) * share)
                    return (part, try range.map { try attempt($0, people: people, now: now, apple) })
                }
            }
            return try await group.reduce(into: [Int: [Attempt]]()) { $0[$1.0] = $1.1 }
        }
        let attempts = parts.sorted { $0.key < $1.key }.flatMap(\.value)
        let tokens = SignInTokens(
            withCode: "\(directory)/sign-ins.jsonl",
            withoutCode: "\(directory)/sign-ins-without-code.jsonl",
            answers: attempts.map(\.answer)
        )
        try lines(attempts.map { "{\($0.request),\"authorization_code\":\"\($0.code)\"}" }, to: tokens.withCode)
        try lines(attempts.map { "{\($0.request)}" }, to: tokens.withoutCode)
        return tokens
    }

    private static func lines(_ lines: [String], to file: String) throws {
        try (lines.joined(separator: "\n") + "\n").write(toFile: file, atomically: true, encoding: .utf8)
    }

    private static func attempt(
        _ number: Int,
        people: Int,
        now: Int64,
        _ apple: SimulatedApple
    ) throws -> Attempt {
        var random = SplitMix(seed: UInt64(number))
        let half = people / 2
        let person = half + Int(random.next() % UInt64(half))
        let code = "c\(number).0.benchmark"
        let nonce = "nonce-\(random.next())"
        let hash = SHA256.digest(Array(nonce.utf8).span).map { ($0 < 16 ? "0" : "") + String($0, radix: 16) }.joined()
        func token(_ companion: SimulatedIdentity.Companion) throws -> String {
            try apple.token(
                for: SimulatedIdentity(
                    sub: Population.subject(person),
                    client: client,
                    issuedAt: now,
                    authenticatedAt: now,
                    nonce: hash,
                    companion: companion,
                    address: .init("u\(person)@privaterelay.appleid.com", isPrivate: true)
                )
            )
        }
        let access = "a\(number).0.benchmark"
        let answer = SimulatedResponse.tokens(
            access: access,
            refresh: "r\(number).0.benchmark",
            identity: try token(.accessToken(access))
        )
        let session = "\"session\":{\"id\":\"benchmark-\(number)\",\"expires_in\":2592000}"
        return Attempt(
            request:
                "\"client_id\":\"\(client)\",\"identity_token\":\"\(try token(.code(code)))\",\"nonce\":\"\(nonce)\",\(session)",
            code: code,
            answer: answer.body
        )
    }
}
