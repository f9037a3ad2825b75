import Dispatch
import Glibc
import Synchronization
import Testing

@testable import Telemetry

@Suite("Standard error")
struct StandardErrorOutputTests {
    /// A pipe whose writer never blocks.
    private final class Pipe: Sendable {
        let reader: Int32
        let writer: Int32
        private let taken = Mutex<[UInt8]>([])

        init() throws {
            var ends: [Int32] = [-1, -1]
            try #require(pipe(&ends) == 0)
            (reader, writer) = (ends[0], ends[1])
            try #require(fcntl(writer, F_SETFL, O_NONBLOCK) == 0)
        }

        deinit {
            close(reader)
            close(writer)
        }

        var content: [UInt8] { taken.withLock { $0 } }

        /// Fills the pipe with spaces.
        func fill() {
            let blanks = [UInt8](repeating: UInt8(ascii: " "), count: 4_096)
            for size in [blanks.count, 1] { while write(writer, blanks, size) > 0 {} }
        }

        /// Reads `count` bytes, or fewer if the writer closes.
        func read(_ count: Int) {
            var block = [UInt8](repeating: 0, count: 65_536)
            var left = count
            while left > 0 {
                let size = Glibc.read(reader, &block, min(left, block.count))
                guard size > 0 else { return }
                taken.withLock { $0 += block[..<size] }
                left -= size
            }
        }

        /// The number of unread bytes.
        var waiting: Int {
            var size: Int32 = 0
            return ioctl(reader, UInt(FIONREAD), &size) == 0 ? Int(size) : 0
        }
    }

    private func record(_ letter: Character, _ count: Int) -> [UInt8] {
        Array((String(repeating: letter, count: count - 1) + "\n").utf8)
    }

    @Test("A record arrives whole at a slow reader.")
    func lag() throws {
        let pipe = try Pipe()
        pipe.fill()
        let (before, long) = (pipe.waiting, record("a", 300_000))
        let reading = DispatchGroup()
        DispatchQueue.global().async(group: reading) { pipe.read(before + long.count) }
        // Long enough for a busy machine to start the other thread.
        StandardErrorOutput(descriptor: pipe.writer, patience: .seconds(300)).write(long)
        reading.wait()
        #expect(pipe.content.dropFirst(before).elementsEqual(long))
    }

    @Test(
        "A reader that does not read delays only one record, up to the deadline, also if the pipe blocks.",
        arguments: [O_NONBLOCK, 0]
    )
    func stuck(flags: Int32) throws {
        let pipe = try Pipe()
        pipe.fill()
        try #require(fcntl(pipe.writer, F_SETFL, flags) == 0)
        let output = StandardErrorOutput(descriptor: pipe.writer, patience: .milliseconds(20))
        let start = ContinuousClock.now
        for _ in 0..<1_000 { output.write(record("a", 100)) }
        #expect(.now - start < .seconds(10))
        pipe.read(pipe.waiting)
        output.write(record("b", 100))
        #expect(pipe.waiting == 100, "records are written again once it reads")
    }

    @Test("A partly written record is completed before the next one; records in between are dropped whole.")
    func torn() throws {
        let pipe = try Pipe()
        let output = StandardErrorOutput(descriptor: pipe.writer, patience: .milliseconds(1))
        let begun = record("a", 300_000)
        output.write(begun)
        output.write(record("b", 100))
        while pipe.content.count < begun.count {
            try #require(pipe.waiting > 0)
            pipe.read(pipe.waiting)
            output.write(record("c", 100))
        }
        pipe.read(pipe.waiting)
        let lines = pipe.content.split(separator: UInt8(ascii: "\n"), omittingEmptySubsequences: false)
        #expect(lines.first?.elementsEqual(begun.dropLast()) == true)
        #expect(lines.last?.isEmpty == true)
        #expect(lines.dropFirst().dropLast().allSatisfy { $0.elementsEqual(record("c", 100).dropLast()) })
    }
}
