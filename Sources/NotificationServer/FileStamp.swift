import Glibc

/// Tells whether one of several files was replaced or written.
struct FileStamp: Equatable, Sendable {
    private struct Stamp: Equatable, Sendable {
        let inode: UInt64
        let size: Int64
        let seconds: Int
        let nanoseconds: Int
    }

    private let stamps: [Stamp?]

    /// Looks at the files. A file that isn't there has a stamp too: none.
    init(_ paths: String...) {
        stamps = paths.map { path in
            var status = stat()
            guard stat(path, &status) == 0 else { return nil }
            return Stamp(
                inode: UInt64(status.st_ino),
                size: Int64(status.st_size),
                seconds: status.st_mtim.tv_sec,
                nanoseconds: status.st_mtim.tv_nsec
            )
        }
    }
}
