import Glibc
import Testing

@testable import Spool

@Suite("Files that only siwad can change")
struct FileTrustTests {
    private static let siwad: uid_t = 990
    private static let other: uid_t = 1_000

    @Test(
        "A file that another user owns, or that its group or others can write, is not trusted.",
        arguments: [
            (siwad, 0o600, true), (siwad, 0o700, true), (siwad, 0o644, true), (siwad, 0o755, true),
            (siwad, 0o620, false), (siwad, 0o602, false), (siwad, 0o1777, false), (siwad, 0o770, false),
            (0, 0o600, false), (other, 0o600, false),
        ] as [(uid_t, Int, Bool)]
    )
    func alone(_ owner: uid_t, _ mode: Int, _ isTrusted: Bool) {
        let trust = FileTrust(owner: owner, mode: mode_t(mode))
        #expect((trust.problem(for: Self.siwad) == nil) == isTrusted)
    }

    @Test(
        "A parent directory is not trusted if users other than root and siwad can replace an entry of it.",
        arguments: [
            (siwad, 0o700, true), (siwad, 0o755, true), (siwad, 0o775, false), (siwad, 0o777, false),
            (siwad, 0o1777, false), (other, 0o755, false), (0, 0o755, true), (0, 0o2775, false), (0, 0o775, false),
            (0, 0o1777, true),
            (0, 0o777, false),
        ] as [(uid_t, Int, Bool)]
    )
    func parent(_ owner: uid_t, _ mode: Int, _ isTrusted: Bool) {
        let trust = FileTrust(owner: owner, mode: mode_t(mode))
        #expect((trust.problemAsParent(for: Self.siwad) == nil) == isTrusted)
        #expect(trust.isOwnedByRoot == (owner == 0))
    }

    @Test("A symbolic link is trusted if root or siwad made it, whatever its mode.", arguments: [0, siwad, other])
    func link(_ owner: uid_t) {
        let trust = FileTrust(owner: owner, mode: 0o777)
        #expect((trust.problemAsLink(for: Self.siwad) == nil) == (owner != Self.other))
    }
}
