import Glibc
import Testing

@testable import Spool

@Suite("Who can change a file")
struct TrustTests {
    private static let siwad: uid_t = 990
    private static let other: uid_t = 1_000

    @Test(
        "What another user owns, or the group or others can write, is never siwad's alone.",
        arguments: [
            (siwad, 0o600, true), (siwad, 0o700, true), (siwad, 0o644, true), (siwad, 0o755, true),
            (siwad, 0o620, false), (siwad, 0o602, false), (siwad, 0o1777, false), (siwad, 0o770, false),
            (0, 0o600, false), (other, 0o600, false),
        ] as [(uid_t, Int, Bool)]
    )
    func alone(_ owner: uid_t, _ mode: Int, _ isTrusted: Bool) {
        let trust = Trust(owner: owner, mode: mode_t(mode))
        #expect((trust.objection(for: Self.siwad) == nil) == isTrusted)
    }

    @Test(
        "A directory above is never trusted where others than root and siwad can replace what is in it.",
        arguments: [
            (siwad, 0o700, true), (siwad, 0o755, true), (siwad, 0o775, false), (siwad, 0o777, false),
            (siwad, 0o1777, false), (other, 0o755, false), (0, 0o755, true), (0, 0o2775, true), (0, 0o1777, true),
            (0, 0o777, false),
        ] as [(uid_t, Int, Bool)]
    )
    func parent(_ owner: uid_t, _ mode: Int, _ isTrusted: Bool) {
        let trust = Trust(owner: owner, mode: mode_t(mode))
        #expect((trust.objectionAsParent(for: Self.siwad) == nil) == isTrusted)
        #expect(trust.isRoots == (owner == 0))
    }
}
