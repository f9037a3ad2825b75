import FoundationEssentials
import TestSupport
import Testing

@Suite("The systemd unit")
struct UnitFileTests {
    private static let path =
        #filePath.split(separator: "/").dropLast(3).map { "/\($0)" }.joined() + "/deploy/siwad.service"

    @Test("The unit limits memory and tasks, and gives the daemon a private keyring.")
    func limits() throws {
        let lines = try String(contentsOfFile: Self.path, encoding: .utf8).split(separator: "\n")
        for line in ["MemoryMax=256M", "TasksMax=512", "KeyringMode=private"] {
            #expect(lines.contains { $0 == line }, "\(line) is missing")
        }
    }

    @Test("The unit lets systemd wait for readiness, notice a daemon that hangs, and pass the secret.")
    func service() throws {
        let lines = try String(contentsOfFile: Self.path, encoding: .utf8).split(separator: "\n")
        for line in ["Type=notify", "WatchdogSec=30s", "LoadCredential=database-url:/etc/siwad/database-url"] {
            #expect(lines.contains { $0 == line }, "\(line) is missing")
        }
    }

    @Test("The unit keeps the directory of the socket at a restart, for containers that have mounted it.")
    func socketDirectory() throws {
        let lines = try String(contentsOfFile: Self.path, encoding: .utf8).split(separator: "\n")
        for line in ["RuntimeDirectory=siwad", "RuntimeDirectoryPreserve=yes"] {
            #expect(lines.contains { $0 == line }, "\(line) is missing")
        }
    }

    @Test(
        "systemd-analyze security rates the exposure of the unit 1.2 at most.",
        .enabled(if: FileManager.default.isExecutableFile(atPath: "/usr/bin/systemd-analyze"), "there is no systemd")
    )
    func exposure() async throws {
        let check = try await ChildProcess.run([
            "systemd-analyze", "security", "--offline=true", "--threshold=12", Self.path,
        ])
        #expect(check.isSuccess, "\(check.output.split(separator: "\n").last ?? "")")
    }

    @Test(
        "systemd-analyze verify reports no problem.",
        .enabled(if: FileManager.default.isExecutableFile(atPath: "/usr/bin/systemd-analyze"), "there is no systemd")
    )
    func verification() async throws {
        let directory = try TemporaryDirectory()
        // systemd-analyze requires that the executable exists.
        let unit = try String(contentsOfFile: Self.path, encoding: .utf8)
            .replacing("ExecStart=/usr/local/bin/siwad ", with: "ExecStart=\(Binary.path) ")
        try directory.write(Array(unit.utf8), to: "siwad.service")
        let check = try await ChildProcess.run([
            "systemd-analyze", "verify", "--man=no", directory.file("siwad.service"),
        ])
        #expect(check.isSuccess && !check.output.contains("siwad.service:"), "\(check.output)")
    }
}
