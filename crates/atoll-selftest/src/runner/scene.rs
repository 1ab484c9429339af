//! Everything that is there while cases are played on one tier: canaries, the
//! shared attacker, the neighbour.

use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::case::{Attack, Case, Control, Numbers, Place, Program, Target, User};
use crate::keeper::Keeper;
use crate::program::{self, Report};
use crate::room::{self, Order, Pids};
use crate::stage::{Actor, Connection, Neighbour, Stage};
use crate::world::World;
use crate::{Ground, native};

/// An attack's report and its control's; `Err` where there was none.
pub(crate) type Pair = (Result<Report, String>, Result<Report, String>);

pub(crate) struct Scene {
    pub(crate) keeper: Keeper,
    pub(crate) stage: Stage,
    home: PathBuf,
    program: PathBuf,
    room: Result<PathBuf, String>,
    shared: Option<Actor>,
    neighbour: Option<Neighbour>,
    neighbour_secret: String,
    range: String,
    connection: Connection,
    world: Option<World>,
}

impl Scene {
    pub(crate) async fn open(ground: &Ground, stage: Stage, cases: &[Case]) -> io::Result<Self> {
        let connected = cases.iter().any(Case::needs_world);
        Ok(Self {
            connection: if connected {
                Connection::Full
            } else {
                Connection::None
            },
            world: None,
            range: ground.range.clone(),
            keeper: Keeper::start(&ground.home, &ground.program).await?,
            stage,
            home: ground.home.clone(),
            program: ground.program.clone(),
            room: ground.room.clone(),
            shared: None,
            neighbour: None,
            neighbour_secret: crate::keeper::random_text()?,
        })
    }

    pub(crate) async fn close(self) -> io::Result<()> {
        for actor in self
            .shared
            .into_iter()
            .chain(self.neighbour.map(|it| it.actor))
        {
            actor.close().await;
        }
        if let Some(world) = self.world {
            world.close().await?;
        }
        self.keeper.finish().await
    }

    /// What no report of an attacker may hold.
    pub(crate) fn secrets(&self) -> [&str; 2] {
        [&self.keeper.secret, &self.neighbour_secret]
    }

    /// Makes the attack and its control.
    pub(crate) async fn play(&mut self, case: &Case) -> Pair {
        if case.needs_world()
            && let Err(why) = self.world().await
        {
            return (Err(why.clone()), Err(why));
        }
        let program = match &case.attack {
            Attack::Program(program) => program,
            Attack::Native(native) => {
                return match native::play(native, self).await {
                    Ok(pair) => pair,
                    Err(why) => (Err(why.clone()), Err(why)),
                };
            }
        };
        match self.play_program(case, program).await {
            Ok(pair) => pair,
            // The stage failed, not the attack.
            Err(why) => (Err(why.clone()), Err(why)),
        }
    }

    async fn play_program(&mut self, case: &Case, program: &Program) -> Result<Pair, String> {
        match &program.place {
            Place::Shared => self.play_shared(case, program).await,
            Place::Alone(limits) => self.play_alone(case, program, limits).await,
            Place::Observed => self.play_observed(program).await,
        }
    }

    /// In the sandbox that attacks share.
    async fn play_shared(&mut self, case: &Case, program: &Program) -> Result<Pair, String> {
        let actor = match self.shared.take() {
            Some(actor) => actor,
            None => self.open_plain(&Numbers::new()).await?,
        };
        let pair = self.both(case, program, &actor).await;
        // Root may end its own sandbox, but not the work of its PID 1 without that being noticed.
        if actor.answers().await {
            self.shared = Some(actor);
            return pair;
        }
        actor.close().await;
        let (_, control) = pair?;
        Ok((
            Ok(Report::succeeded("the agent does not answer any more")),
            control,
        ))
    }

    async fn play_alone(
        &mut self,
        case: &Case,
        program: &Program,
        limits: &Numbers,
    ) -> Result<Pair, String> {
        let actor = self.open_plain(limits).await?;
        let pair = self.both(case, program, &actor).await;
        actor.close().await;
        pair
    }

    async fn both(
        &mut self,
        case: &Case,
        program: &Program,
        actor: &Actor,
    ) -> Result<Pair, String> {
        if case.group == "neighbours" {
            self.neighbour().await?;
        }
        let target = self.target_inside(&[&program.target], &actor.token);
        let text = program::text(program.body, &target);
        let attack = attempt(actor, &text, program.user, &program.directories).await;
        let control = self.control(case, program, actor).await?;
        Ok((attack, control))
    }

    async fn control(
        &mut self,
        case: &Case,
        program: &Program,
        actor: &Actor,
    ) -> Result<Result<Report, String>, String> {
        let directory = program.directories.first().map_or("/", String::as_str);
        Ok(match &case.control {
            Control::Room {
                namespaces,
                pivoted,
                leak,
                target,
            } => {
                let mut target = self.target(&[&program.target, target], "");
                target.insert("tier".to_owned(), Value::from("none"));
                let text = program::text(program.body, &target);
                let order = Order {
                    namespaces: namespaces.clone(),
                    pids: match case.group.as_str() {
                        "processes" => Pids::Host,
                        _ => Pids::Own,
                    },
                    pivoted: *pivoted,
                    leak: *leak,
                    directory: directory.to_owned(),
                    ..self.order(&text)
                };
                self.in_room(&order).await
            }
            Control::Inside(aim) => {
                let target = self.target_inside(&[&program.target, aim], &actor.token);
                let text = program::text(program.body, &target);
                actor.perform(&text, program.user, "/").await.report()
            }
            Control::Neighbour => {
                let neighbour = self.neighbour().await?;
                let token = neighbour.actor.token.clone();
                let target = self.target_inside(&[&program.target], &token);
                let text = program::text(program.body, &target);
                let neighbour = self.neighbour().await?;
                let performance = neighbour.actor.perform(&text, program.user, "/").await;
                performance.report()
            }
            Control::Looser(limits) => {
                let actor = self.open_plain(limits).await?;
                let target = self.target_inside(&[&program.target], &actor.token);
                let text = program::text(program.body, &target);
                let report = actor.perform(&text, program.user, "/").await.report();
                actor.close().await;
                report
            }
            Control::Observer | Control::Told(_) => Err("it has no control".to_owned()),
        })
    }

    /// One sandbox acts, the neighbour looks; the control looks where it acted.
    async fn play_observed(&mut self, program: &Program) -> Result<Pair, String> {
        self.neighbour().await?;
        let actor = self.open_plain(&Numbers::new()).await?;
        let step = |name: &str| {
            let mut target = program.target.clone();
            target.insert("step".to_owned(), name.to_owned());
            target
        };
        let target = self.target_inside(&[&step("act")], &actor.token);
        let text = program::text(program.body, &target);
        let acted = actor.perform(&text, program.user, "/").await.report();
        let target = self.target_inside(&[&step("check")], &actor.token);
        let text = program::text(program.body, &target);
        let neighbour = self.neighbour().await?;
        let attack = neighbour
            .actor
            .perform(&text, program.user, "/")
            .await
            .report();
        let control = actor.perform(&text, program.user, "/").await.report();
        actor.close().await;
        match acted {
            Ok(report) if report.success => Ok((attack, control)),
            Ok(report) => Err(format!("the attacker could not act: {}", report.got)),
            Err(why) => Err(why),
        }
    }

    pub(crate) async fn open_plain(&self, limits: &Numbers) -> Result<Actor, String> {
        self.stage
            .open(limits, Vec::new(), self.connection)
            .await
            .map_err(|error| error.to_string())
    }

    async fn neighbour(&mut self) -> Result<&Neighbour, String> {
        let neighbour = match self.neighbour.take() {
            Some(neighbour) => neighbour,
            None => Neighbour::open(&self.stage, self.connection, &self.neighbour_secret)
                .await
                .map_err(|error| error.to_string())?,
        };
        Ok(self.neighbour.insert(neighbour))
    }

    /// The world of network cases, made when it is needed first.
    async fn world(&mut self) -> Result<(), String> {
        if self.world.is_none() {
            self.room.clone()?;
            let order = self.order("");
            self.world = Some(World::open(&self.program, order, &self.range).await?);
        }
        Ok(())
    }

    /// The home whose walls are tried.
    pub(crate) fn home(&self) -> &Path {
        &self.home
    }

    /// A plain order for the control room.
    pub(crate) fn order(&self, text: &str) -> Order {
        Order {
            layers: self.room.iter().cloned().collect(),
            room: self.keeper.room_directory(),
            canaries: self.keeper.open_directory(),
            namespaces: Vec::new(),
            pids: Pids::Own,
            pivoted: false,
            leak: false,
            bare: false,
            directory: "/".to_owned(),
            program: text.to_owned(),
        }
    }

    /// Runs a program in the control room.
    pub(crate) async fn in_room(&self, order: &Order) -> Result<Report, String> {
        self.room.clone()?;
        room::perform(&self.program, order)
            .await
            .map_err(|error| error.to_string())?
            .report()
    }

    /// What a program in a sandbox can aim at: also the neighbour, as that describes itself.
    fn target_inside(&self, more: &[&Target], token: &str) -> Map<String, Value> {
        let mut target = match &self.neighbour {
            Some(neighbour) => neighbour.belongings.target(),
            None => Map::new(),
        };
        // Whatever a sandbox says, it says nothing about the host.
        target.extend(self.target(more, token));
        target
    }

    /// What a program can aim at, on the host too: canaries, and `more`, the last one first.
    /// Nothing of it was said by a sandbox.
    pub(crate) fn target(&self, more: &[&Target], token: &str) -> Map<String, Value> {
        let mut target = self.keeper.target.clone();
        target.insert(
            "tier".to_owned(),
            Value::from(self.stage.tier().to_string()),
        );
        if let Some(world) = &self.world {
            target.extend(world.target.clone());
        }
        for pairs in more {
            for (name, value) in *pairs {
                let value = match value.as_str() {
                    "$token" => token,
                    "$neighbour-token" => self
                        .neighbour
                        .as_ref()
                        .map_or("", |neighbour| &neighbour.actor.token),
                    plain => plain,
                };
                target.insert(name.clone(), Value::from(value));
            }
        }
        target
    }
}

/// Runs an attack from each directory until one succeeds; the last report counts.
async fn attempt(
    actor: &Actor,
    text: &str,
    user: User,
    directories: &[String],
) -> Result<Report, String> {
    let Some((first, others)) = directories.split_first() else {
        return actor.perform(text, user, "/").await.report();
    };
    let mut report = actor.perform(text, user, first).await.report();
    for directory in others {
        if report.as_ref().is_ok_and(|report| report.success) {
            break;
        }
        report = actor.perform(text, user, directory).await.report();
    }
    report
}
