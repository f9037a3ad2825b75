import Glibc
import TestSupport
import Testing

@testable import Spool

@Suite("The directory of the spool")
struct SpoolDirectoryTests {
    private func record(_ number: Int) -> SpoolRecord {
        SpoolRecord(receivedAt: Int64(number), keyID: "kid", body: [UInt8](repeating: UInt8(ascii: "a"), count: 10))
    }

    private func mode(_ path: String) -> mode_t {
        var status = stat()
        return lstat(path, &status) == 0 ? status.st_mode & 0o777 : 0
    }

    @Test("The directory and the files are private.")
    func permissions() async throws {
        let parent = try TemporaryDirectory()
        let path = parent.file("spool")
        let spool = try Spool(directory: path, limit: 1 << 20)
        try await spool.append([record(1)])
        #expect(mode(path) == 0o700)
        let name = try #require(try await spool.oldest(atMost: 1).batch.files.first)
        #expect(mode("\(path)/\(name)") == 0o600)
    }

    @Test("A directory that others may enter is made private if it is empty or a spool.")
    func makesPrivate() throws {
        let parent = try TemporaryDirectory()
        try #require(mkdir(parent.file("open"), 0o755) == 0)
        _ = try Spool(directory: parent.file("open"), limit: 1 << 20)
        #expect(mode(parent.file("open")) == 0o700)
        chmod(parent.path, 0o755)
        let error = #expect(throws: SpoolError.self) { try Spool(directory: parent.path, limit: 1 << 20) }
        #expect(error?.code == .unusable)
        #expect(mode(parent.path) == 0o755)
    }

    @Test("A directory with foreign files is refused and not changed.")
    func foreignDirectory() throws {
        let directory = try TemporaryDirectory()
        try directory.write(Array("listen: 0.0.0.0".utf8), to: "siwad.yaml")
        try directory.write([], to: ".bashrc")
        chmod(directory.path, 0o755)
        let error = #expect(throws: SpoolError.self) { try Spool(directory: directory.path, limit: 1 << 20) }
        #expect(error?.code == .unusable)
        #expect(error?.message.contains(".siwad-spool") == true, "\(error?.message ?? "")")
        #expect(mode(directory.path) == 0o755)
        #expect(try directory.names == [".bashrc", "siwad.yaml"])
    }

    @Test(
        "A directory that others can write is refused and not changed.",
        arguments: [0o777, 0o1777, 0o770, 0o720]
    )
    func writableDirectory(_ mode: Int) throws {
        let parent = try TemporaryDirectory()
        try #require(mkdir(parent.file("spool"), 0o700) == 0)
        chmod(parent.file("spool"), mode_t(mode))
        let error = #expect(throws: SpoolError.self) { try Spool(directory: parent.file("spool"), limit: 1 << 20) }
        #expect(error?.code == .unusable)
        #expect(error?.message.contains("can write") == true, "\(error?.message ?? "")")
        #expect(self.mode(parent.file("spool")) == mode_t(mode) & 0o777)
        #expect(try TemporaryDirectory.names(at: parent.file("spool")) == [])
    }

    @Test("A directory below one that others can write is refused, and none is created there.")
    func writableParent() throws {
        let parent = try TemporaryDirectory()
        chmod(parent.path, 0o777)
        let error = #expect(throws: SpoolError.self) { try Spool(directory: parent.file("spool"), limit: 1 << 20) }
        #expect(error?.code == .unusable)
        #expect(error?.message.contains("\(parent.path) ") == true, "\(error?.message ?? "")")
        #expect(try parent.names == [])
    }

    @Test(
        "A directory that another user owns, or below one, is refused.",
        .enabled(if: geteuid() == 0, "needs root, to give a directory away"),
        arguments: ["spool", "spool/below"]
    )
    func othersDirectory(_ name: String) throws {
        let parent = try TemporaryDirectory()
        try #require(mkdir(parent.file("spool"), 0o755) == 0)
        try #require(chown(parent.file("spool"), 12_345, 12_345) == 0)
        let error = #expect(throws: SpoolError.self) { try Spool(directory: parent.file(name), limit: 1 << 20) }
        #expect(error?.code == .unusable)
        #expect(try TemporaryDirectory.names(at: parent.file("spool")) == [])
    }

    @Test("A directory that siwad created is marked, and is used again with its files.")
    func marker() async throws {
        let parent = try TemporaryDirectory()
        let path = parent.file("spool")
        do {
            let spool = try Spool(directory: path, limit: 1 << 20)
            try await spool.append([record(1)])
            spool.unlock()
        }
        #expect(try TemporaryDirectory.names(at: path).first == ".siwad-spool")
        let spool = try Spool(directory: path, limit: 1 << 20)
        #expect(try await spool.scan().setAside == [])
        #expect(try await spool.oldest(atMost: 1).batch.records == [record(1)])
    }

    @Test(
        "A symbolic link of another user is refused, and one of siwad's is used.",
        .enabled(if: geteuid() == 0, "needs root, to give a link away")
    )
    func symbolicLink() throws {
        let parent = try TemporaryDirectory()
        try #require(mkdir(parent.file("real"), 0o700) == 0)
        try #require(symlink("real", parent.file("link")) == 0)
        try #require(symlink("link/spool", parent.file("second")) == 0)
        for name in ["link/spool", "link/../real/spool", "second"] {
            try Spool(directory: parent.file(name), limit: 1 << 20).unlock()
        }
        try #require(lchown(parent.file("link"), 12_345, 12_345) == 0)
        for name in ["link/spool", "link/../real/spool", "second"] {
            let error = #expect(throws: SpoolError.self) { try Spool(directory: parent.file(name), limit: 1 << 20) }
            #expect(error?.code == .unusable)
            #expect(error?.message.contains("symbolic link \(parent.path)/link ") == true, "\(error?.message ?? "")")
        }
        try Spool(directory: parent.file("real/spool"), limit: 1 << 20).unlock()
        try #require(symlink("loop", parent.file("loop")) == 0)
        #expect(throws: SpoolError.self) { try Spool(directory: parent.file("loop"), limit: 1 << 20) }
    }

    @Test("Files are used through the open directory, even if the path leads elsewhere.")
    func heldDirectory() async throws {
        let parent = try TemporaryDirectory()
        let spool = try Spool(directory: parent.file("spool"), limit: 1 << 20)
        try await spool.append([record(1)])
        let batch = try await spool.oldest(atMost: 1).batch
        let name = try #require(batch.files.first)
        try #require(rename(parent.file("spool"), parent.file("moved")) == 0)
        try #require(mkdir(parent.file("spool"), 0o700) == 0)
        try parent.write([1], to: "spool/\(name)")
        try await spool.remove(batch)
        #expect(try TemporaryDirectory.names(at: parent.file("moved")) == [".siwad-spool"])
        #expect(try TemporaryDirectory.names(at: parent.file("spool")) == [name])
    }

    @Test("A marker of another user is refused, and the error names its owner.", .enabled(if: geteuid() == 0))
    func othersMarker() throws {
        let directory = try TemporaryDirectory()
        try directory.write([], to: ".siwad-spool")
        try #require(chown(directory.file(".siwad-spool"), 12_345, 12_345) == 0)
        let checked = #expect(throws: SpoolError.self) { try Spool.check(directory: directory.path) }
        let error = #expect(throws: SpoolError.self) { try Spool(directory: directory.path, limit: 1 << 20) }
        #expect(error == checked)
        #expect(error?.message.contains("belongs to user id 12345") == true, "\(error?.message ?? "")")
    }

    @Test("The check has the same result as opening, and changes nothing.")
    func check() throws {
        let parent = try TemporaryDirectory()
        try Spool.check(directory: parent.file("missing"))
        #expect(try parent.names.isEmpty)
        try #require(mkdir(parent.file("spool"), 0o755) == 0)
        try Spool.check(directory: parent.file("spool"))
        #expect(mode(parent.file("spool")) == 0o755)
        let spool = try Spool(directory: parent.file("spool"), limit: 1 << 20)
        // One that is in use too: the doctor looks while the daemon runs.
        try Spool.check(directory: parent.file("spool"))
        spool.unlock()
        try parent.write([1], to: "notes")
        #expect(throws: SpoolError.self) { try Spool.check(directory: parent.path) }
        chmod(parent.path, 0o777)
        #expect(throws: SpoolError.self) { try Spool.check(directory: parent.file("spool")) }
    }

    @Test(
        "A full disk without room for the marker is a temporary failure.",
        .enabled(if: TemporaryDirectory.canMount, "needs root, to mount a small file system")
    )
    func fullForMarker() throws {
        let disk = try TemporaryDirectory(capacity: 64 * 1_024)
        try #require(mkdir(disk.file("spool"), 0o700) == 0)
        try #require(mount("tmpfs", disk.path, "tmpfs", UInt(MS_REMOUNT), "nr_inodes=2") == 0)
        let error = #expect(throws: SpoolError.self) { try Spool(directory: disk.file("spool"), limit: 1 << 20) }
        #expect(error?.code == .failed)
        #expect(error?.message.contains("make room there") == true, "\(error?.message ?? "")")
    }

    @Test("What waits moves along when the path leads to another directory, such as one that is mounted late.")
    func moved() async throws {
        let parent = try TemporaryDirectory()
        let spool = try Spool(directory: parent.file("spool"), limit: 1 << 20)
        for number in 0..<3 { try await spool.append([record(number)]) }
        try #require(rename(parent.file("spool"), parent.file("former")) == 0)
        try #require(mkdir(parent.file("spool"), 0o700) == 0)
        // As after a crash in the middle: one file is in both.
        let names = try TemporaryDirectory.names(at: parent.file("former"))
        let first = try #require(names.first { $0.hasSuffix(".spool") })
        try parent.write(try parent.content("former/\(first)"), to: "spool/\(first)")
        chmod(parent.file("spool/\(first)"), 0o600)
        try parent.write([], to: "spool/.siwad-spool")
        chmod(parent.file("spool/.siwad-spool"), 0o600)
        // Others could have written it, so it is left, and keeps none of the others from moving.
        let foreign = "00000000000000000001.spool"
        try parent.write([1], to: "former/\(foreign)")
        chmod(parent.file("former/\(foreign)"), 0o666)
        let folder = "00000000000000000002.spool"
        try #require(mkdir(parent.file("former/\(folder)"), 0o700) == 0)
        try await spool.followDirectory()
        _ = try await spool.scan()
        let records = try await spool.oldest(atMost: 9).batch.records
        #expect(records == (0..<3).map { record($0) })
        let left = try TemporaryDirectory.names(at: parent.file("former")).filter { $0.hasSuffix(".spool") }
        #expect(left == [foreign, folder])
        #expect(spool.losses == 1)
    }

    @Test("A file never replaces another one of the same name.")
    func noReplacement() throws {
        let parent = try TemporaryDirectory()
        let directory = try SpoolDirectory(parent.file("spool"))
        for content in [[1], [2]] as [[UInt8]] {
            // The result is not tested here.
            _ = try? directory.write(content, as: "00000000000000000001.spool")
        }
        let kept = try TemporaryDirectory.names(at: parent.file("spool")).filter { !$0.hasPrefix(".") }
        #expect(kept == ["00000000000000000001.spool"])
        #expect(try parent.content("spool/00000000000000000001.spool") == [1])
    }

    @Test("Where systemd makes the file system read-only, the error names the setting that opens a directory.")
    func readOnly() {
        #expect(SpoolDirectory.advice(EROFS).contains("ReadWritePaths="))
        #expect(SpoolDirectory.advice(EACCES) == "name a directory that siwad may read and write")
    }

    @Test("A second spool on the same directory is refused.")
    func lock() throws {
        let directory = try TemporaryDirectory()
        do {
            let first = try Spool(directory: directory.path, limit: 1 << 20)
            let error = #expect(throws: SpoolError.self) { try Spool(directory: directory.path, limit: 1 << 20) }
            #expect(error?.code == .inUse)
            first.unlock()
        }
        _ = try Spool(directory: directory.path, limit: 1 << 20)
    }

    @Test(
        "A path that can't be a directory is an error that names the next step.",
        arguments: ["/nowhere/spool", "/dev/null"]
    )
    func unusable(_ path: String) {
        let error = #expect(throws: SpoolError.self) { try Spool(directory: path, limit: 1 << 20) }
        #expect(error?.code == .unusable)
        #expect(error?.message.hasPrefix("the spool directory \(path) can't be used: ") == true)
    }

    @Test("A directory that was removed and created again is used and locked again.")
    func replaced() async throws {
        let parent = try TemporaryDirectory()
        let path = parent.file("spool")
        let spool = try Spool(directory: path, limit: 1 << 20)
        try #require(unlink(path + "/.siwad-spool") == 0)
        try #require(rmdir(path) == 0)
        try await spool.append([record(1)])
        #expect(try await spool.oldest(atMost: 1).batch.records == [record(1)])
        let error = #expect(throws: SpoolError.self) { try Spool(directory: path, limit: 1 << 20) }
        #expect(error?.code == .inUse)
    }
}
