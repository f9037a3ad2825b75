import FoundationEssentials
import Glibc

/// A server's shared memory, as one has it that has run for a while.
enum SharedMemory {
    /// Has the kernel give every page that the server has mapped, by reading a byte of each from outside.
    ///
    /// A page is only there once somebody touched it, and the kernel clears it first: two megabytes, where pages are huge.
    /// A new server with large buffers pays that for each row that it adds, one that runs pays it once in its life. Where
    /// the kernel doesn't let one process read another, the server goes on as it is.
    static func populate(of processID: Int32) {
        let memory = open("/proc/\(processID)/mem", O_RDONLY | O_CLOEXEC)
        guard memory >= 0 else { return }
        defer { close(memory) }
        for (range, page) in mappings(of: processID) {
            for address in stride(from: range.lowerBound, to: range.upperBound, by: page) {
                var byte: UInt8 = 0
                guard unsafe pread(memory, &byte, 1, off_t(address)) == 1 else { break }
            }
        }
    }

    /// The shared mappings without a file, each with the size of its pages in bytes.
    private static func mappings(of processID: Int32) -> [(Range<Int>, page: Int)] {
        Machine.read("/proc/\(processID)/maps").split(separator: "\n").compactMap { line in
            let fields = line.split(separator: " ", maxSplits: 5)
            guard fields.count == 6, fields[1].hasSuffix("s") else { return nil }
            let isHuge = fields[5].contains("/anon_hugepage")
            let bounds = fields[0].split(separator: "-").compactMap { Int($0, radix: 16) }
            guard isHuge || fields[5].contains("/dev/zero"), bounds.count == 2 else { return nil }
            return (bounds[0]..<bounds[1], page: isHuge ? HugePages.bytes : Int(getpagesize()))
        }
    }
}
