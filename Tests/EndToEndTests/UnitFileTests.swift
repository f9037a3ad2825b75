import FoundationEssentials
import TestSupport
import Testing

@Suite("The unit for systemd")
struct UnitFileTests {
    private static let path =
        #filePath.split(separator: "/").dropLast(3).map { "/\($0)" }.joined() + "/deploy/siwad.service"

    @Test("The daemon can't take all memory or all processes of its machine, and has a keyring of its own.")
    func limits() throws {
        let lines = try String(contentsOfFile: Self.path, encoding: .utf8).split(separator: "\n")
        for line in ["MemoryMax=256M", "TasksMax=512", "KeyringMode=private"] {
            #expect(lines.contains { $0 == line }, "\(line) is missing")
        }
    }

    @Test(
        "systemd has no objection to it.",
        .enabled(if: FileManager.default.isExecutableFile(atPath: "/usr/bin/systemd-analyze"), "there is no systemd")
    )
    func verification() async throws {
        let directory = try TemporaryDirectory()
        // The program has to be there.
        let unit = try String(contentsOfFile: Self.path, encoding: .utf8)
            .replacing("ExecStart=/usr/local/bin/siwad ", with: "ExecStart=\(Binary.path) ")
        try directory.write(Array(unit.utf8), to: "siwad.service")
        let check = try await ChildProcess.run([
            "systemd-analyze", "verify", "--man=no", directory.file("siwad.service"),
        ])
        #expect(check.isSuccess && !check.output.contains("siwad.service:"), "\(check.output)")
    }
}
