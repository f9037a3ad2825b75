import AppleTokens
import AppleSimulator
import Basics
import FoundationEssentials
import JOSE
import Synchronization

/// Request bodies in files, one per line: distinct notifications in Apple's exact format for random people, 60 % about
/// addresses, 30 % revocations and 10 % deletions.
struct Tokens {
    /// File of genuine notifications.
    let genuine: String
    /// File of the same notifications with wrong signatures.
    let forged: String
    /// File of the key set.
    let keySet: String

    /// siwad accepts a token for a day; this leaves four hours for the measurement.
    private static let lifetime: TimeInterval = 20 * 3_600

    /// Uses the files of an earlier run if they are fresh enough; otherwise signs tokens, 1 ms each.
    static func minted(
        _ count: Int,
        people: Int,
        app: String = Population.app,
        in directory: String
    ) async throws -> Tokens {
        let stem = "\(directory)/tokens-\(app)-\(people)-\(count)"
        let tokens = Tokens(genuine: stem + ".jsonl", forged: stem + "-forged.jsonl", keySet: "\(directory)/keys.json")
        let apple = try await signer(in: directory, keySet: tokens.keySet)
        if isFresh(tokens.genuine) { return tokens }
        Progress.note("signing \(count) notifications")
        let now = WallTime.now()
        let share = (count + Machine.cores - 1) / Machine.cores
        let parts = try await withThrowingTaskGroup(of: (Int, [String]).self) { group in
            for part in 0..<Machine.cores {
                group.addTask {
                    let range = part * share..<min(count, (part + 1) * share)
                    return (part, try range.map { try body($0, of: count, people: people, app: app, now: now, apple) })
                }
            }
            return try await group.reduce(into: [Int: [String]]()) { $0[$1.0] = $1.1 }
        }
        let bodies = parts.sorted { $0.key < $1.key }.flatMap(\.value)
        try (bodies.map(forge).joined(separator: "\n") + "\n").write(
            toFile: tokens.forged,
            atomically: true,
            encoding: .utf8
        )
        try (bodies.joined(separator: "\n") + "\n").write(toFile: tokens.genuine, atomically: true, encoding: .utf8)
        return tokens
    }

    private static func body(
        _ number: Int,
        of count: Int,
        people: Int,
        app: String,
        now: WallTime,
        _ apple: SimulatedApple
    ) throws -> String {
        var random = SplitMix(seed: UInt64(number))
        let person = Int(random.next() % UInt64(people))
        let type: String
        switch random.next() % 10 {
        case 0..<3: type = "email-disabled"
        case 3..<6: type = "email-enabled"
        case 6..<9: type = "consent-revoked"
        default: type = "account-deleted"
        }
        let isAboutEmail = type.hasPrefix("email")
        let event = SimulatedEvent(
            type: type,
            sub: Population.subject(person),
            app: app,
            email: isAboutEmail ? "u\(person)@privaterelay.appleid.com" : nil,
            isPrivateEmail: isAboutEmail ? true : nil,
            eventTime: now.wholeMilliseconds - Int64(count) + Int64(number),
            issuedAt: now.wholeSeconds
        )
        return SimulatedApple.body(token: try apple.token(for: event))
    }

    /// The body with one character of its signature changed.
    private static func forge(_ body: String) -> String {
        var bytes = Array(body.utf8)
        let index = bytes.count - 100
        bytes[index] = bytes[index] == UInt8(ascii: "A") ? UInt8(ascii: "B") : UInt8(ascii: "A")
        return String(decoding: bytes, as: UTF8.self)
    }

    private static func isFresh(_ path: String) -> Bool {
        // A missing file counts as an old one.
        guard let attributes = try? FileManager.default.attributesOfItem(atPath: path),
            let date = attributes[.modificationDate] as? Date
        else { return false }
        return date.timeIntervalSinceNow > -lifetime
    }

    /// The key for all tokens in a directory.
    static func signer(in directory: String, keySet: String) async throws -> SimulatedApple {
        let path = "\(directory)/key.pem"
        // The file does not exist before the first run.
        if let pem = try? String(contentsOfFile: path, encoding: .utf8) {
            return try SimulatedApple(key: .init(pem: pem))
        }
        let apple = try SimulatedApple.generate()
        try apple.keySetJSON.write(toFile: keySet, atomically: true, encoding: .utf8)
        try apple.key.pem().write(toFile: path, atomically: true, encoding: .utf8)
        return apple
    }
}

/// A random number generator with a seed (SplitMix64), so that every run has the same numbers.
struct SplitMix: RandomNumberGenerator {
    private var state: UInt64

    init(seed: UInt64) { state = seed &* 0x9e37_79b9_7f4a_7c15 }

    mutating func next() -> UInt64 {
        state &+= 0x9e37_79b9_7f4a_7c15
        var z = state
        z = (z ^ (z >> 30)) &* 0xbf58_476d_1ce4_e5b9
        z = (z ^ (z >> 27)) &* 0x94d0_49bb_1331_11eb
        return z ^ (z >> 31)
    }
}
