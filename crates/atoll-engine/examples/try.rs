use atoll_engine::*;
use std::io::{Read,Write};
use std::time::*;
fn main(){
 if std::env::args().nth(1).as_deref()==Some("monitor"){ std::process::exit(if run_monitor()==std::process::ExitCode::SUCCESS{0}else{1}); }
 let cmd=std::env::args().nth(1).unwrap_or("id; cat /proc/self/status".into());
 println!("reaped {:?}", reconcile().unwrap());
 let rt=std::env::var("RT").map(|p|OciRuntimeChoice::External(p.into())).unwrap_or(OciRuntimeChoice::Builtin);
 let cfg=EngineConfig{home:"/tmp/tb/home".into(),guest:"/tmp/tb/pause".into(),program:std::env::current_exe().unwrap(),oci_runtime:rt,slot_range:SlotRange::default()};
 let r=ContainerRuntime::new(cfg);
 for _ in 0..std::env::var("N").ok().and_then(|n|n.parse().ok()).unwrap_or(1){
 let t=Instant::now();
 let id=SandboxId::random().unwrap();
 let s=r.create(&SandboxSpec{id:id.clone(),layers:vec!["/tmp/tb/layer".into()],limits:Limits::default(),network:if std::env::var("NET").is_ok(){NetworkMode::Full}else{NetworkMode::None},hostname:id.to_string(),env:Default::default(),lifetime:Some(Duration::from_secs(60)),attachment:Attachment::Client});
 let s=match s{Ok(s)=>s,Err(e)=>{println!("{e:?}");return}};
 let t1=t.elapsed();
 let mut c=loop{match s.dial(49983){Ok(c)=>break c,Err(e)=>{if t.elapsed()>Duration::from_secs(3){println!("dial {e}");s.destroy().ok();return} std::thread::sleep(Duration::from_millis(1))}}};
 writeln!(c,"{cmd} 2>&1").unwrap(); let mut o=String::new(); c.read_to_string(&mut o).unwrap(); print!("{o}");
 let t2=t.elapsed();
 println!("{:?}",s.stats());
 let t3=Instant::now();
 println!("{:?}", s.destroy());
 println!("create {t1:?} first {t2:?} destroy {:?}",t3.elapsed());
 }
}
