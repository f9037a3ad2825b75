import Glibc
import Terminal
import TestSupport
import Testing

@testable import siwad

@Suite("A file that siwad writes")
struct NewFileTests {
    @Test("is created once with its whole content and its mode, and no temporary file remains.")
    func create() throws {
        let directory = try TemporaryDirectory()
        let path = directory.file("key.pem")
        #expect(try NewFile.create(path, mode: 0o600, [1, 2, 3]) == true)
        #expect(try NewFile.create(path, mode: 0o600, [4]) == false)
        #expect(try directory.content("key.pem") == [1, 2, 3])
        #expect(try directory.names == ["key.pem"])
        var status = stat()
        try #require(stat(path, &status) == 0)
        #expect(status.st_mode & 0o777 == 0o600)
        try NewFile.replace(path, mode: 0o600, [5])
        #expect(try directory.content("key.pem") == [5])
        #expect(try directory.names == ["key.pem"])
    }

    @Test("leaves nothing if it can't be put in its place.")
    func misplaced() throws {
        let directory = try TemporaryDirectory()
        try #require(mkdir(directory.file("taken"), 0o700) == 0)
        #expect(throws: CommandFailure.self) { try NewFile.replace(directory.file("taken"), mode: 0o600, [1]) }
        #expect(try NewFile.create(directory.file("taken"), mode: 0o600, [1]) == false)
        #expect(try directory.names == ["taken"])
    }

    @Test("is not left empty if there is no room for it.", .enabled(if: TemporaryDirectory.canMount))
    func noRoom() throws {
        let directory = try TemporaryDirectory(capacity: 65_536)
        let bytes = [UInt8](repeating: 1, count: 1 << 20)
        #expect(throws: CommandFailure.self) { try NewFile.create(directory.file("key.pem"), mode: 0o600, bytes) }
        #expect(throws: CommandFailure.self) { try NewFile.replace(directory.file("keys.json"), mode: 0o600, bytes) }
        #expect(try directory.names == [])
    }
}
