//! Writes text by the library that native_gpt.py makes: gpt <seed> <characters>.

use std::alloc::{alloc_zeroed, dealloc, handle_alloc_error, Layout};
use std::ffi::{c_char, c_int, c_void, CStr};
use std::ptr::null;

/// What gpt.h declares, as far as it is used here.
mod c {
    use super::*;

    #[repr(C)]
    pub struct Tensor {
        pub name: *const c_char,
        pub dtype: *const c_char,
        pub rank: c_int,
        pub dims: *const i64,
        pub bytes: usize,
    }

    #[repr(C)]
    pub struct Context {
        pub reserved: [u64; 8],
        pub message: [c_char; 192],
    }

    extern "C" {
        pub fn gpt_arena_bytes() -> usize;
        pub fn gpt_input(i: usize) -> *const Tensor;
        pub fn gpt_init(context: *mut Context, context_bytes: usize, weights: *const c_void,
                        weights_bytes: usize) -> c_int;
        pub fn gpt_run(context: *mut Context, inputs: *const *const c_void,
                       outputs: *const *mut c_void, arena: *mut c_void,
                       arena_bytes: usize) -> c_int;
        pub fn gpt_message(context: *const Context) -> *const c_char;
    }
}

/// Memory that begins at a multiple of 64 bytes.
struct Block(*mut u8, Layout);

impl Block {
    fn new(bytes: usize) -> Block {
        let layout = Layout::from_size_align(bytes.max(1), 64).expect("a size");
        let data = unsafe { alloc_zeroed(layout) };
        if data.is_null() {
            handle_alloc_error(layout);
        }
        Block(data, layout)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        unsafe { dealloc(self.0, self.1) }
    }
}

/// The function with its state.
struct Gpt {
    context: Box<c::Context>,
    arena: Block,
    cache: Block,
    next: Block,
}

impl Gpt {
    fn new() -> Result<Gpt, String> {
        let mut context = Box::new(c::Context { reserved: [0; 8], message: [0; 192] });
        let size = std::mem::size_of::<c::Context>();
        let status = unsafe { c::gpt_init(&mut *context, size, null(), 0) };
        let bytes = unsafe { (*c::gpt_input(0)).bytes };
        let arena = Block::new(unsafe { c::gpt_arena_bytes() });
        let made = Gpt { context, arena, cache: Block::new(bytes), next: Block::new(bytes) };
        made.checked(status)?;
        Ok(made)
    }

    /// How many characters the cache can hold.
    fn capacity(&self) -> usize {
        unsafe { *(*c::gpt_input(0)).dims.add(2) as usize }
    }

    /// The character that follows.
    fn step(&mut self, character: i32, position: i32, seed: i32) -> Result<i32, String> {
        let mut drawn = 0i32;
        let scalars = [character, position, seed];
        let [character, position, seed] = [0, 1, 2].map(|i| &scalars[i] as *const i32 as _);
        let inputs = [self.cache.0 as *const c_void, character, position, seed];
        let outputs = [self.next.0 as *mut c_void, &mut drawn as *mut i32 as *mut c_void];
        let status = unsafe {
            c::gpt_run(&mut *self.context, inputs.as_ptr(), outputs.as_ptr(),
                       self.arena.0 as *mut c_void, self.arena.1.size())
        };
        self.checked(status)?;
        std::mem::swap(&mut self.cache, &mut self.next);
        Ok(drawn)
    }

    fn checked(&self, status: c_int) -> Result<(), String> {
        let message = unsafe { CStr::from_ptr(c::gpt_message(&*self.context)) };
        if status == 0 { Ok(()) } else { Err(message.to_string_lossy().into_owned()) }
    }
}

fn main() -> Result<(), String> {
    let mut arguments = std::env::args().skip(1).map(|each| each.parse().unwrap_or(0));
    let seed: i32 = arguments.next().unwrap_or(0);
    let length = arguments.next().unwrap_or(400) as usize;
    let mut gpt = Gpt::new()?;
    let mut text = vec!['\n' as i32];
    let (mut begin, mut fed) = (0, 0);
    while text.len() <= length {
        // When the cache is full, it goes on from the second half of what it has seen.
        if fed - begin == gpt.capacity() {
            begin = text.len() - gpt.capacity() / 2;
            fed = begin;
        }
        let drawn = gpt.step(text[fed], (fed - begin) as i32, seed + fed as i32)?;
        fed += 1;
        if fed == text.len() {
            text.push(drawn);
            print!("{}", char::from_u32(drawn as u32).unwrap_or('?'));
        }
    }
    println!();
    Ok(())
}
