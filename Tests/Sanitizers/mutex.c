// Tells ThreadSanitizer what happens in Synchronization.Mutex. Linked into the tests by deploy/sanitize.
//
// A mutex that no other thread wants is locked by code in the caller, which ThreadSanitizer sees. One that is wanted is
// locked and unlocked by the kernel, called from a library that isn't instrumented; without this, each access under
// such a lock would be reported as a race.

#include <dlfcn.h>
#include <stdint.h>

#define swiftcall __attribute__((swiftcall))
#define self __attribute__((swift_context)) void *

#define LOCK "$s15Synchronization12_MutexHandleV9_lockSlowyys6UInt32VF"
#define UNLOCK "$s15Synchronization12_MutexHandleV11_unlockSlowyyF"

typedef swiftcall void lock_function(uint32_t thread, self);
typedef swiftcall void unlock_function(self);

void __tsan_acquire(void *address);
void __tsan_release(void *address);

swiftcall void lock_slowly(uint32_t thread, self mutex) __asm__(LOCK);
swiftcall void unlock_slowly(self mutex) __asm__(UNLOCK);

swiftcall void lock_slowly(uint32_t thread, self mutex) {
    ((lock_function *)dlsym(RTLD_NEXT, LOCK))(thread, mutex);
    __tsan_acquire(mutex);
}

swiftcall void unlock_slowly(self mutex) {
    __tsan_release(mutex);
    ((unlock_function *)dlsym(RTLD_NEXT, UNLOCK))(mutex);
}
